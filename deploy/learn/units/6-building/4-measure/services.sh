#!/bin/bash
# services.sh NUMBER: prints Services s-0, s-1 and so on, with addresses from 10.96.0.1 on. All have the pods of web.
for i in $(seq 0 $(($1 - 1))); do
  echo "{apiVersion: v1, kind: Service, metadata: {name: s-$i}, spec: {selector: {app: web}, clusterIP: 10.96.$((i / 250)).$((i % 250 + 1)), ports: [{name: http, port: 80, targetPort: http}]}}"
  echo ---
done
