package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab/dns"
)

// The files of a host's own.
const (
	hostsFile    = "/etc/hosts"
	resolvFile   = "/etc/resolv.conf"
	hostnameFile = "/etc/hostname"
)

// noDNS is the resolv.conf of hosts without a DNS server. Without a server, resolvers use this one anyway: nothing
// listens there, so that lookups fail at once.
const noDNS = `# No DNS: names are those of /etc/hosts.
nameserver 127.0.0.1
`

// hostsHeader and localHosts are the beginning of /etc/hosts as kubelet writes it for pods (pkg/kubelet/kubelet_pods.go,
// managedHostsFileContent).
const (
	hostsHeader = "# Kubernetes-managed hosts file.\n"
	localHosts  = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
)

// hostname is a name as a hostname, as kubelet makes it of a pod's: of at most 63 bytes.
func hostname(name string) string {
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// podIdentity is the hostname and the files of a pod. object is its Pod, nil: there is none; servers are the addresses of
// the cluster's DNS.
func podIdentity(p *Pod, object *corev1.Pod, servers []netip.Addr) netns.Identity {
	name, domain := hostname(p.Name), ""
	if object != nil {
		name = cmp.Or(object.Spec.Hostname, name)
		if s := object.Spec.Subdomain; s != "" {
			domain = fmt.Sprintf("%s.%s.%s.svc.%s\t", name, s, p.Namespace, strings.TrimSuffix(dns.Domain, "."))
		}
	}
	var hosts strings.Builder
	hosts.WriteString(hostsHeader + localHosts)
	for _, a := range p.Addresses {
		fmt.Fprintf(&hosts, "%s\t%s%s\n", a, domain, name)
	}
	return files(name, hosts.String(), podResolv(p.Namespace, servers))
}

// podResolv is the resolv.conf of the pods of a namespace, as kubelet writes it for the policy ClusterFirst.
func podResolv(namespace string, servers []netip.Addr) string {
	if len(servers) == 0 {
		return "# This lab has no Service kube-system/kube-dns.\n" + noDNS
	}
	domain := strings.TrimSuffix(dns.Domain, ".")
	var b strings.Builder
	fmt.Fprintf(&b, "search %s.svc.%[2]s svc.%[2]s %[2]s\n", namespace, domain)
	for _, a := range servers {
		fmt.Fprintf(&b, "nameserver %s\n", a)
	}
	b.WriteString("options ndots:5\n")
	return b.String()
}

// machineIdentity is the identity of a node, a client or the router: they do not use the cluster's DNS, as on a real
// cluster, but know each other's names.
func machineIdentity(s *Spec, name string) netns.Identity {
	var hosts strings.Builder
	hosts.WriteString(localHosts)
	add := func(name string, addresses []netip.Addr) {
		for _, a := range addresses {
			fmt.Fprintf(&hosts, "%s\t%s\n", a, name)
		}
	}
	for _, n := range s.Nodes {
		add(n.Name, n.Addresses)
	}
	for _, c := range s.Clients {
		add(c.Name, c.Addresses)
	}
	return files(hostname(name), hosts.String(), noDNS)
}

func files(hostname, hosts, resolv string) netns.Identity {
	return netns.Identity{Hostname: hostname, Files: map[string]string{
		hostnameFile: hostname + "\n", hostsFile: hosts, resolvFile: resolv,
	}}
}
