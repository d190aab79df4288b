package xtables

import "github.com/nfqproxy/nfqproxy/datapath/decision"

// Of linux/netfilter/ipset/ip_set.h.
const (
	soIPSet       = 83 // SO_IP_SET
	opGetByIndex  = 7  // IP_SET_OP_GET_BYINDEX
	setProtocol   = 6  // IPSET_PROTOCOL_MIN
	setNameSize   = 32 // IPSET_MAXNAMELEN
	setRequestLen = 40 // struct ip_set_req_get_set
)

// SetNames reads the names of the ipsets of the calling thread's network namespace, of both
// families. It needs CAP_NET_ADMIN. A name that cannot be read is empty.
func SetNames(index uint16) (name string, ok bool) {
	s, err := open(decision.IPv4)
	if err != nil {
		return "", false
	}
	defer s.close()
	request := make([]byte, setRequestLen)
	byteOrder.PutUint32(request, opGetByIndex)
	byteOrder.PutUint32(request[4:], setProtocol)
	byteOrder.PutUint16(request[8:], index)
	if err := s.get(soIPSet, request); err != nil {
		return "", false
	}
	name = cString(request[8 : 8+setNameSize])
	return name, name != ""
}
