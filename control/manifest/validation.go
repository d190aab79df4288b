package manifest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

// validation collects what is wrong with one object. It checks what would make
// the service table lie, not all that the API server checks.
type validation struct {
	errs []yamlfile.FieldError
}

func (v *validation) fail(path, format string, args ...any) {
	v.errs = append(v.errs, yamlfile.FieldError{Field: path, Err: fmt.Errorf(format, args...)})
}

// name checks the object's own names. A slash or a colon in one would make two
// service ports the same.
func (v *validation) name(o named) {
	if o.GetName() == "" {
		v.fail("metadata.name", "missing")
	} else {
		v.syntax("metadata.name", o.GetName(), apivalidation.IsDNS1123Subdomain)
	}
	if o.GetNamespace() != "" {
		v.syntax("metadata.namespace", o.GetNamespace(), apivalidation.IsDNS1123Label)
	}
}

func (v *validation) syntax(path, s string, check func(string) []string) {
	for _, problem := range check(s) {
		v.fail(path, "%q: %s", s, problem)
	}
}

// oneOf checks a field that has a fixed set of values.
func oneOf[T ~string](v *validation, path string, have T, want ...T) {
	if slices.Contains(want, have) {
		return
	}
	names := make([]string, len(want))
	for i, w := range want {
		names[i] = string(w)
	}
	v.fail(path, "%q is none of %s", have, strings.Join(names, ", "))
}

func (v *validation) protocol(path string, p corev1.Protocol) {
	oneOf(v, path, p, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

func (v *validation) port(path string, p int32) {
	if p < 1 || p > 65535 {
		v.fail(path, "%d is not a port number (1 to 65535)", p)
	}
}

// address checks an address of either family.
func (v *validation) address(path, s string) (netip.Addr, bool) {
	a, err := kubeaddr.Parse(s)
	if err != nil {
		v.fail(path, "%w", err)
	}
	return a, err == nil
}

// addressOf checks an address of one family.
func (v *validation) addressOf(path, s string, family corev1.IPFamily) (netip.Addr, bool) {
	a, err := kubeaddr.Parse(s)
	if err != nil || familyOf(a) != family {
		v.fail(path, "%q is not an %s address", s, family)
		return netip.Addr{}, false
	}
	return a, true
}

func (v *validation) prefix(path, s string) {
	if _, err := kubeaddr.ParsePrefix(s); err != nil {
		v.fail(path, "%w", err)
	}
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}
