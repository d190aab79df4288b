#!/bin/bash
# measure.sh ADDRESS: opens 200 connections to port 80 of an address, one after the other, and prints the median of the times
# to connect: half of them are shorter.
times=$(curl -s -o /dev/null --fail-early --connect-timeout 2 -H 'Connection: close' -w '%{time_connect}\n' "http://$1/?[1-200]" | sort -n)
median=$(sed -n 100p <<<"$times" | sed 's/^0\.0*//')
echo "$HOSTNAME to $1: ${median:-no connection, or 0} microseconds"
