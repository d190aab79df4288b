# Sends 100 requests to web on one connection. After 20 of them, the Deployment gets eight pods.
exec 3<>/dev/tcp/10.96.20.20/80
for i in $(seq 100); do
  printf 'GET / HTTP/1.1\r\nHost: web\r\n\r\n' >&3
  while read -r line <&3; do
    case $line in *'"pod"'*) break ;; esac
  done
  echo "$line" | grep -o '"pod":"[^"]*"' | cut -d'"' -f4
  [ "$i" = 20 ] && nfqproxy lab scale web 8 >/dev/null
done | uniq -c | tee kept.txt
