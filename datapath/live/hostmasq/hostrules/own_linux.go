package hostrules

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// isOwn reports whether a table of nftables is nfqproxy's: one of its working tables, or the temporary one
// that tests the kernel's features ([ruleset.Probe]).
func isOwn(family uint8, name string) bool {
	return (family == unix.NFPROTO_IPV4 || family == unix.NFPROTO_IPV6) && (name == ruleset.TableName || strings.HasPrefix(name, ruleset.TableName+"-"))
}
