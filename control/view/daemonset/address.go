package daemonset

import (
	"errors"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// address is where a daemon serves its flow API.
type address struct {
	port int
	tls  bool
	// public: the API server can connect to it at the pod's address. Port-forward connects to loopback
	// addresses only, which a public one may include.
	public, loopback bool
}

// addressOf returns the best address of a pod's daemon, as its arguments give it.
func addressOf(pod *corev1.PodSpec) (address, error) {
	var best address
	for at := range strings.SplitSeq(flagOf(pod, "flow-api"), ",") {
		if _, socket := observe.SocketPath(at); socket {
			continue
		}
		host, text, err := net.SplitHostPort(at)
		port, err2 := strconv.Atoi(text)
		if err != nil || err2 != nil {
			continue
		}
		ip := net.ParseIP(host)
		a := address{port: port, tls: flagOf(pod, "flow-api-tls-cert") != "", loopback: observe.IsLoopback(host) || host == "" || ip != nil && ip.IsUnspecified()}
		a.public = !observe.IsLoopback(host)
		if best.port == 0 || a.public && !best.public {
			best = a
		}
	}
	if best.port == 0 {
		return best, errors.New("its daemon serves the flow API at no ADDRESS:PORT: start it with --flow-api, as deploy/kubernetes does")
	}
	return best, nil
}

// flagOf returns the value of a flag in the arguments of a pod's containers; empty: it is not given.
func flagOf(pod *corev1.PodSpec, flag string) (value string) {
	for i := range pod.Containers {
		c := &pod.Containers[i]
		arguments := append(append([]string{}, c.Command...), c.Args...)
		for j, a := range arguments {
			if v, ok := strings.CutPrefix(a, "--"+flag+"="); ok {
				value = v // the last one counts
			} else if a == "--"+flag && j+1 < len(arguments) {
				value = arguments[j+1]
			}
		}
	}
	return value
}
