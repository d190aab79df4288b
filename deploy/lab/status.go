package lab

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// Status describes a running lab.
type Status struct {
	labapi.Status
	Started time.Time `json:"started"`
	// FlowAPI is its flow API and web page; empty: it serves none.
	FlowAPI FlowAPIStatus `json:"flowAPI"`
	// Files lists what in the lab's files is not in force.
	Files FilesStatus `json:"files"`
}

// FlowAPIStatus is the address of the flow API of all nodes.
type FlowAPIStatus struct {
	URL   string `json:"url"`   // http://127.0.0.1:10253
	Token string `json:"token"` // required for changes
	// Browser is the URL for browsers, where that is another one: a host of the lab uses a socket, which no browser does.
	Browser string `json:"browser,omitempty"`
}

// Page is the address of the web page, with the token in it.
func (s FlowAPIStatus) Page() string { return cmp.Or(s.Browser, s.URL) + "/#token=" + s.Token }

// nodeText is the state of a node and its daemons.
func nodeText(n *labapi.NodeStatus) string {
	text := n.Daemon.State
	if n.Observer != nil {
		text += ", observer " + n.Observer.State
	}
	if n.Down {
		text += ", no connection"
	}
	if n.Cordoned {
		text += ", no new pods"
	}
	return text
}

// Hosts are the names of all hosts, as in [Spec.Hosts], except for the router.
func (s *Status) Hosts() (names []string) {
	for _, n := range s.Nodes {
		names = append(names, n.Name)
	}
	for _, p := range s.Pods {
		names = append(names, p.Name)
	}
	for _, c := range s.Clients {
		names = append(names, c.Name)
	}
	return names
}

// WriteText writes the status as text.
func (s *Status) WriteText(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "lab %s, up since %s\n\n", s.Name, s.Started.Local().Format("15:04:05"))
	fmt.Fprintln(t, "NODE\tADDRESSES\tPODS\tDAEMON")
	for _, n := range s.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", n.Name, texts(n.Addresses), texts(n.PodCIDRs), nodeText(&n))
	}
	fmt.Fprintln(t, "\nPOD\tADDRESSES\tNODE\tSTATE")
	for _, p := range s.Pods {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", p.Name, texts(p.Addresses), p.Node, p.State)
	}
	if len(s.Deployments) > 0 {
		fmt.Fprintln(t, "\nDEPLOYMENT\tREADY")
		for _, d := range s.Deployments {
			fmt.Fprintf(t, "%s\t%d of %d\n", d.Name, d.Ready, d.Replicas)
		}
	}
	if len(s.Clients) > 0 {
		fmt.Fprintln(t, "\nCLIENT\tADDRESSES")
		for _, c := range s.Clients {
			fmt.Fprintf(t, "%s\t%s\n", c.Name, texts(c.Addresses))
		}
	}
	if s.FlowAPI.URL != "" {
		fmt.Fprintf(t, "\nWeb page: %s\n", s.FlowAPI.Page())
	}
	_ = t.Flush() // a Builder takes everything
	if len(s.Faults) > 0 {
		b.WriteString("\nFAULTS\n")
		for _, f := range s.Faults {
			fmt.Fprintf(&b, "%d  %s\n", f.ID, f.Text)
		}
	}
	if text := s.Files.String(); text != "" {
		b.WriteString("\n" + text)
	}
	for _, n := range s.Nodes {
		for _, d := range []*labapi.DaemonStatus{&n.Daemon, n.Observer} {
			if d != nil && d.Error != "" {
				b.WriteString("\n" + d.Error + "\n")
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func texts[T fmt.Stringer](items []T) string { return joined(items, " ") }

func joined[T fmt.Stringer](items []T, separator string) string {
	all := make([]string, len(items))
	for i, item := range items {
		all[i] = item.String()
	}
	return strings.Join(all, separator)
}
