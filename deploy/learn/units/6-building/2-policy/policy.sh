#!/bin/bash
# A policy for the Service web. Each round decides one connection.
n=0
while true; do
  n=1
  printf 'c %s\ng\n' "$n" | nfqproxy step --service default/web --seconds 600 || exit
done
