#!/bin/sh
# A SuperNode starts programs by name. With this folder first on its PATH it starts these scripts,
# and runs only the installed client, never code that a run brings along.
case "$${0##*/}" in
  flwr-clientapp) exec $bin/python -P -m bgtplanner.flower.pinned "$$@" ;;
  *) echo "$${0##*/}: refused; only the installed client runs here" >&2; exit 1 ;;
esac
