# Prints how many of the last 100 connections to web each pod got, the busiest last.
nfqproxy flows --service default/web --limit 100 -o custom-columns=P:.pod --no-headers | sort | uniq -c | sort -n
