package observe

import "cmp"

// ServiceKey identifies a service port in one address family, and is the sort key of lists of
// services.
type ServiceKey struct {
	Namespace, Name string
	Port            string // its name
	Family          string // IPv4 or IPv6
}

// Key returns the service's key.
func (s *Service) Key() ServiceKey {
	return ServiceKey{Namespace: s.Namespace, Name: s.Name, Port: s.PortName, Family: s.Family}
}

// Compare orders by namespace, name, port and family.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Name, o.Name), cmp.Compare(k.Port, o.Port), cmp.Compare(k.Family, o.Family))
}

// String returns namespace/name:port/family, the form of [ServiceQuery.After].
func (k ServiceKey) String() string {
	name := k.Name
	if k.Port != "" {
		name += ":" + k.Port
	}
	return k.Namespace + "/" + name + "/" + k.Family
}

// Cut keeps the first services within the filter's limit. more: a merged list had further services.
func (f *ServiceFilter) Cut(s *Services, more bool) {
	if f.Limit > 0 && len(s.Services) > f.Limit {
		s.Services, more = s.Services[:f.Limit], true
	}
	s.Next = ""
	if more && len(s.Services) > 0 {
		s.Next = s.Services[len(s.Services)-1].Key().String()
	}
}
