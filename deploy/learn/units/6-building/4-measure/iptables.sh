#!/bin/bash
# Loads the rules of kube-proxy's mode iptables, for the Services of lab.yaml and many.yaml, as "nfqproxy render" prints them.
# In parts of 150 lines: without root rights, the kernel takes only so much in one message.
touch many.yaml
iptables -t nat -F && iptables -t nat -X
nfqproxy render --objects lab.yaml --objects many.yaml --node node-b --cluster-cidr 10.244.0.0/16 |
  sed -n '/^\*nat/,/^COMMIT/p' | sed '0~150 a COMMIT\n*nat' | iptables-restore --noflush
