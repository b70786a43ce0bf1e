"""Succeeds if what runs in this container answers: health.py URL, or HOST:PORT (gRPC)."""

import sys
import urllib.request

address = sys.argv[1]
if address.startswith("http://"):
    urllib.request.urlopen(address, timeout=4).close()  # noqa: S310 - raises unless it is there
else:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        asked = health_pb2.HealthCheckRequest()
        answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=4)
    sys.exit(answer.status != health_pb2.HealthCheckResponse.SERVING)
