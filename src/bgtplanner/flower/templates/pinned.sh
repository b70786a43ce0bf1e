#!/bin/sh
# A SuperNode starts programs by their names. With this folder first on its PATH it starts these,
# and runs the installed client only, never code that a run brings along.
case "$${0##*/}" in
  flwr-clientapp) exec $bin/python -P -m bgtplanner.flower.pinned "$$@" ;;
  *) echo "$${0##*/}: refused; only the installed client runs here" >&2; exit 1 ;;
esac
