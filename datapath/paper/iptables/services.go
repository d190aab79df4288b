package iptables

import (
	"strconv"
	"strings"
)

// services are the names that iptables -L prints for ports, of IANA and of the /etc/services of
// Debian and Red Hat, as far as they occur in listings. "http-alt" is 8080 as Debian has it; on
// Red Hat, where it is 8008, 8080 is "webcache".
var services = map[string]uint16{
	"tcpmux": 1, "echo": 7, "discard": 9, "daytime": 13, "chargen": 19, "ftp-data": 20, "ftp": 21, "ssh": 22,
	"telnet": 23, "smtp": 25, "time": 37, "domain": 53, "bootps": 67, "bootpc": 68, "tftp": 69, "http": 80,
	"kerberos": 88, "pop3": 110, "sunrpc": 111, "auth": 113, "ntp": 123, "epmap": 135, "netbios-ns": 137,
	"netbios-dgm": 138, "netbios-ssn": 139, "imap": 143, "imap2": 143, "snmp": 161, "snmp-trap": 162, "snmptrap": 162,
	"bgp": 179, "ldap": 389, "https": 443, "microsoft-ds": 445, "submissions": 465, "urd": 465, "isakmp": 500,
	"syslog": 514, "shell": 514, "printer": 515, "route": 520, "dhcpv6-client": 546, "dhcpv6-server": 547,
	"rtsp": 554, "submission": 587, "ipp": 631, "ldaps": 636, "domain-s": 853, "rsync": 873, "ftps": 990,
	"imaps": 993, "pop3s": 995, "socks": 1080, "openvpn": 1194, "ms-sql-s": 1433, "radius": 1812,
	"radius-acct": 1813, "nfs": 2049, "etcd-client": 2379, "etcd-server": 2380, "hbci": 3000, "squid": 3128,
	"iscsi-target": 3260, "mysql": 3306, "ms-wbt-server": 3389, "ipsec-nat-t": 4500, "vxlan": 4789,
	"commplex-main": 5000, "commplex-link": 5001, "sip": 5060, "sip-tls": 5061, "sips": 5061,
	"xmpp-client": 5222, "xmpp-server": 5269, "mdns": 5353, "hostmon": 5355, "postgresql": 5432, "postgres": 5432,
	"amqps": 5671, "amqp": 5672, "x11": 6000, "geneve": 6081, "redis": 6379, "sun-sr-https": 6443, "irdmi": 8000,
	"http-alt": 8080, "webcache": 8080, "sunproxyadmin": 8081, "tproxy": 8081, "pcsync-https": 8443,
	"ddi-tcp-1": 8888, "cslistener": 9000, "websm": 9090, "XmlIpcRegSvc": 9092, "jetdirect": 9100, "wap-wsp": 9200,
	"git": 9418, "webmin": 10000, "zabbix-agent": 10050, "memcache": 11211,
}

// parseService reads the number or name of a port.
func parseService(text string) (string, bool) {
	if n, ok := services[text]; ok {
		return strconv.Itoa(int(n)), true
	}
	// A number that is too big is a fault, which the reader of numbers reports.
	return text, text != "" && strings.Trim(text, "0123456789") == ""
}

// parsePorts reads a range of ports, each a number or a name. A file has no /etc/services with it:
// the names are the usual ones.
func parsePorts(text, separator string) (PortRange, bool) {
	if r, ok := parseAnyRange[uint16](text, separator); ok {
		return r, true
	}
	ends := strings.SplitN(text, separator, 2)
	for i, end := range ends {
		number, ok := parseService(end)
		if !ok {
			return PortRange{}, false
		}
		ends[i] = number
	}
	return parseAnyRange[uint16](strings.Join(ends, separator), separator)
}

// knownHosts are names with the same address everywhere: those of Debian's /etc/hosts and
// /etc/networks, and a frequent DNS name.
var knownHosts = map[string]string{
	"localhost": "127.0.0.1", "loopback": "127.0.0.0", "link-local": "169.254.0.0",
	"base-address.mcast.net": "224.0.0.0", "default": "0.0.0.0", "ip6-localhost": "::1",
}
