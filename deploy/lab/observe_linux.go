package lab

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// makeDir makes the directory of the daemons' sockets, and the token that they share.
func (l *Lab) makeDir() (err error) {
	if l.dir, err = os.MkdirTemp("", "nfqproxy-lab-"); err != nil {
		return err
	}
	l.token = rand.Text()
	return os.WriteFile(l.tokenFile(), []byte(l.token), 0o600)
}

func (l *Lab) tokenFile() string { return filepath.Join(l.dir, "token") }

// socket is where the flow API of a node's daemon is. Its path must not be long, which
// names may be.
func (l *Lab) socket(node string) string {
	for i := range l.spec.Nodes {
		if l.spec.Nodes[i].Name == node {
			return filepath.Join(l.dir, fmt.Sprintf("node-%d.sock", i))
		}
	}
	return ""
}

// NodeObserver is the flow API of one node's daemon.
func (l *Lab) NodeObserver(node string) (*observe.Client, error) {
	if _, err := l.daemon(node); err != nil {
		return nil, err
	}
	return observe.NewClient("unix:"+l.socket(node), observe.ClientOptions{Token: l.token})
}
