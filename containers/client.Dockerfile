# One client of a federation: Flower's SuperNode, which runs the installed client and nothing else.
#
#   docker build -f containers/client.Dockerfile -t bgtplanner-client .
#   docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     --env-file environment -v "$PWD:$PWD" -w "$PWD" bgtplanner-client \
#     --superlink HOST:8443 --root-certificates certificates/ca.crt \
#     --auth-supernode-private-key keys/client-1 \
#     --node-config "client-file=\"$PWD/clients/1/client.toml\""
#
# Only the client's state/ and flower/ are written to. It opens no port to others.
FROM python:3.13-slim AS build
COPY . /source
RUN sh /source/containers/install.sh /opt/bgtplanner flower /source

FROM python:3.13-slim
COPY --from=build /opt/bgtplanner /opt/bgtplanner
ENV PATH=/opt/bgtplanner/pinned:/opt/bgtplanner/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 BGTPLANNER_CACHE=off
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "/opt/bgtplanner/health.py", "127.0.0.1:9098"]
ENTRYPOINT ["flower-supernode", "--health-server-address", "127.0.0.1:9098"]
