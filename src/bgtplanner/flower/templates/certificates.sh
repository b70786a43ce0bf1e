#!/bin/sh
# A certificate authority, the server's certificate, and a key for each client.
# Usage: ./certificates.sh HOSTNAME IP CLIENTS     (such as: localhost 127.0.0.1 6)
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p certificates keys
for number in $(seq "$3"); do # Flower needs keys in the format of ssh-keygen
  [ -e "keys/client-$number" ] || \
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "client-$number" -f "keys/client-$number"
done
cd certificates
openssl req -x509 -newkey rsa:4096 -nodes -keyout ca.key -sha256 -days 365 -subj "/CN=bgtplanner example authority" \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign -out ca.crt
openssl req -newkey rsa:4096 -nodes -keyout server.key -subj "/CN=$1" -out server.csr
printf 'basicConstraints=CA:FALSE\nsubjectAltName=DNS:%s,IP:%s\nextendedKeyUsage=serverAuth\n' "$1" "$2" > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -sha256 \
  -extfile server.ext -out server.pem 2>/dev/null
rm server.csr server.ext
echo "Copy certificates/ca.crt to every client, and keys/client-N to client N only."
echo "Give ca.key and server.key to no one."
