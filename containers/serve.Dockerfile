# The page and the endpoint of one model file. From the root of the repository:
#
#   docker build -f containers/serve.Dockerfile -t bgtplanner-serve .
#   docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     -p 127.0.0.1:8000:8000 -v "$PWD/models:/models:ro" bgtplanner-serve
#
# It serves models/public.model. To replace it while it is served, rename a new file over it.
FROM python:3.13-slim AS build
COPY . /source
RUN sh /source/containers/install.sh /opt/bgtplanner serve /source

FROM python:3.13-slim
COPY --from=build /opt/bgtplanner /opt/bgtplanner
ENV PATH=/opt/bgtplanner/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s CMD ["python", "/opt/bgtplanner/health.py", "http://127.0.0.1:8000/healthz"]
ENTRYPOINT ["bgtplanner", "serve"]
CMD ["/models/public.model", "--host", "0.0.0.0", "--allow-host", "localhost"]
