# requests.sh CONNECTIONS EACH: opens that many connections to web, one after the other, and sends that many requests on each.
# Prints how many requests each pod got, the busiest last.
for i in $(seq "$1"); do curl -s -m 10 "http://10.96.20.20/?[1-$2]"; done |
  grep -o '"pod":"[^"]*"' | cut -d'"' -f4 | sort | uniq -c | sort -n | tee requests.txt
