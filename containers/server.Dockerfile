# The server of a federation: Flower's SuperLink. From the root of the repository:
#
#   docker build -f containers/server.Dockerfile -t bgtplanner-server .
#   docker run --name server --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     --env-file deployment/environment -p 8443:8443 -v "$PWD/deployment:$PWD/deployment" \
#     -w "$PWD/deployment" bgtplanner-server
#   docker exec server flwr run app deployment --stream
#
# The folder is that of `deploy init`, at the same path as outside, and belongs to user 10001. Only
# server/ and flower/ are written to.
FROM python:3.13-slim AS build
COPY . /source
RUN sh /source/containers/install.sh /opt/bgtplanner flower /source

FROM python:3.13-slim
COPY --from=build /opt/bgtplanner /opt/bgtplanner
ENV PATH=/opt/bgtplanner/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 BGTPLANNER_CACHE=off
USER 10001:10001
EXPOSE 8443
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "/opt/bgtplanner/health.py", "127.0.0.1:9099"]
ENTRYPOINT ["flower-superlink", "--health-server-address", "127.0.0.1:9099", "--disable-runtime-dependency-installation"]
CMD ["--host", "0.0.0.0", "--port", "8443", "--enable-supernode-auth", "--ssl-ca-certfile", "certificates/ca.crt", "--ssl-certfile", "certificates/server.pem", "--ssl-keyfile", "certificates/server.key", "--database", "server/superlink.db"]
