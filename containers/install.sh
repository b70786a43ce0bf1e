#!/bin/sh
# Installs the package into a folder of its own: install.sh FOLDER EXTRA SOURCE. The Dockerfiles run
# this, and so does tests/flower/test_containers.py, which needs no daemon.
set -eu
folder=$1 extra=$2 source=$3
python3 -m venv "$folder"
"$folder/bin/python" -m pip --disable-pip-version-check install --quiet --no-cache-dir \
  --constraint "$source/constraints.txt" "bgtplanner[$extra] @ file://$source"
cp "$source/containers/health.py" "$folder/health.py"
if [ "$extra" = flower ]; then # what a SuperNode starts by name: see docs/deployment.md
  "$folder/bin/bgtplanner" deploy init "$folder/example" --clients 3 > /dev/null
  mv "$folder/example/pinned" "$folder/pinned"
  rm -r "$folder/example"
fi
