#!/bin/bash
# A policy for the Service web: each client has an endpoint of its own.
pin() { # CLIENT NUMBER
  while printf 'c %s\ng\n' "$2" | nfqproxy step --service default/web --source "default/$1" --seconds 600; do
    :
  done
}
pin alice 1 &
wait
