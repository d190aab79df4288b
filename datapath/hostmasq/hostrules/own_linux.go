package hostrules

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/ruleset"
)

// isOwn reports whether a table of nftables is nfqproxy's: the one it works with, or the one that
// is there for a moment to try what the kernel can do ([ruleset.Probe]).
func isOwn(family uint8, name string) bool {
	return family == unix.NFPROTO_INET && (name == ruleset.TableName || strings.HasPrefix(name, ruleset.TableName+"-"))
}
