package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubblesource"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// forwardedServer is where kubectl port-forward serves the flow API of a node.
const forwardedServer = "http://127.0.0.1:10253"

// localServer returns the flow API of this machine's daemon, if its socket exists, else the
// forwarded one.
func localServer(socket string) string {
	if info, err := os.Stat(socket); err == nil && info.Mode().Type() == fs.ModeSocket {
		return "unix:" + socket
	}
	return forwardedServer
}

// connector makes an observer of the flow API at server: a URL, HOST:PORT or a Unix socket; or of a Hubble, see package
// hubblesource. An empty token means no token.
type connector func(server, token string) (observe.Observer, error)

// connect is the connector of the program.
func connect(server, token string) (observe.Observer, error) {
	if hubblesource.Is(server) {
		if token != "" {
			return nil, fmt.Errorf("server %q: Hubble does not use tokens: omit --token-file; hubble+tls:// supports client certificates", server)
		}
		s, err := hubblesource.Open(server)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	// hubble:PORT is a host of that name.
	if strings.HasPrefix(server, "hubble+") || strings.HasPrefix(server, "hubble:") && strings.Count(server, ":") > 1 {
		return nil, fmt.Errorf("server %q: want hubble://HOST:PORT, hubble+tls://HOST:PORT or hubble+unix:/PATH", server)
	}
	return remote.NewClient(server, remote.ClientOptions{Token: token})
}

// defaultServer returns the flow API of a lab that this user runs; an empty server: no name was
// given and no lab runs.
func defaultServer(name string) (server, token string, err error) {
	s, err := lab.FlowAPIOf(name)
	return s.URL, s.Token, err
}

// serverFlags select a flow API.
type serverFlags struct {
	server     string
	lab        string
	tokenFile  string
	daemons    daemonsFlags
	kubeconfig string // of daemons
	color      string
}

func (f *serverFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "", "flow API: unix:PATH, URL or HOST:PORT; or Cilium's Hubble: hubble://HOST:PORT, hubble+tls://HOST:PORT or hubble+unix:PATH (default: your running lab's, else unix:"+flowapi.DefaultSocket+" if it exists, else "+forwardedServer+")")
	labFlag(cmd, &f.lab)
	f.daemons.add(cmd)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "with --cluster: kubeconfig (default: $KUBECONFIG, ~/.kube/config or, in a pod, its ServiceAccount)")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the flow API's token (default with --cluster: a token of the daemons' ServiceAccount)")
	oneOf(cmd, &f.color, "color", "", ": auto means on a terminal, unless NO_COLOR is set", "auto", "always", "never")
}

// style returns the style of an output.
func (f *serverFlags) style(w io.Writer) text.Style {
	own := text.StyleFor(w)
	own.Color = f.color == "always" || f.color == "auto" && own.Color
	return own
}

// observer connects to the flow API that the flags select, until the context ends. Warnings go to stderr; nil:
// nowhere.
func (f *serverFlags) observer(ctx context.Context, connect connector, stderr io.Writer) (observe.Observer, error) {
	cluster, err := f.ofCluster()
	if err != nil {
		return nil, err
	}
	if cluster {
		token, err := f.token()
		if err != nil {
			return nil, err
		}
		return f.daemons.open(ctx, f.kubeconfig, token, remote.RelayOptions{}, stderr)
	}
	server, token := f.server, ""
	if server != "" && f.lab != "" {
		return nil, errors.New("--server and --lab cannot be used together: give one of them")
	}
	if server == "" {
		var err error
		if server, token, err = defaultServer(f.lab); err != nil {
			return nil, err
		}
	}
	if f.tokenFile != "" {
		if token, err = f.token(); err != nil {
			return nil, err
		}
	}
	o, err := connect(cmp.Or(server, localServer(flowapi.DefaultSocket)), token)
	if s, ok := o.(*hubblesource.Source); ok && stderr != nil {
		s.Note = func(note string) { fmt.Fprintln(stderr, "nfqproxy: note:", note) }
	}
	return o, err
}

// notHubble returns an error if the server is a Hubble: a command shows what it does not report.
func (f *serverFlags) notHubble(command, shows string) error {
	if !hubblesource.Is(f.server) {
		return nil
	}
	return fmt.Errorf("nfqproxy %s shows %s, and Hubble only reports flows: use nfqproxy flows or nfqproxy record with --server %s", command, shows, f.server)
}

// serviceName completes an argument SERVICE: without a namespace it is in that of --namespace, of the kubeconfig's context
// or default.
func (f *serverFlags) serviceName(namespace, service string) string {
	if namespace == "" && f.daemons.cluster && f.server == "" && f.lab == "" {
		namespace = connectionTo(f.kubeconfig, f.daemons.context).Namespace()
	}
	return inNamespace(cmp.Or(namespace, "default"), service)
}

// serviceNamespaceFlag adds the --namespace of an argument SERVICE.
func serviceNamespaceFlag(cmd *cobra.Command, namespace *string) {
	namespaceFlag(cmd, namespace, "a SERVICE without one", "with --cluster that of the kubeconfig's context, else default")
}

// ofCluster reports whether the flags select all nodes of a cluster.
func (f *serverFlags) ofCluster() (bool, error) {
	cluster, err := f.daemons.wanted("server", "lab")
	if err == nil && !cluster && (f.kubeconfig != "" || f.daemons.context != "") {
		err = errors.New("--kubeconfig and --context require --cluster")
	}
	return cluster, err
}

// token reads the token; empty: none is given.
func (f *serverFlags) token() (string, error) {
	if f.tokenFile == "" {
		return "", nil
	}
	return flowapi.ReadToken("--token-file", f.tokenFile)
}

// blameFlag names the flag in an error of the flow API: the one that is invalid, or the one
// that would help.
func blameFlag(flags *pflag.FlagSet, err error) error {
	var fault *observe.Error
	if !errors.As(err, &fault) {
		return err
	}
	if fault.Status == http.StatusUnauthorized {
		return fmt.Errorf("%w (give --token-file)", err)
	}
	// Fields of JSON requests have their parent's name: flow.protocol.
	name := fault.Field[strings.LastIndexByte(fault.Field, '.')+1:]
	if name == "" || flags.Lookup(name) == nil {
		return err
	}
	for _, start := range []string{fault.Field, name} {
		if rest, ok := strings.CutPrefix(fault.Message, start+" "); ok {
			return fmt.Errorf("--%s %s", name, rest)
		}
	}
	return fmt.Errorf("--%s: %s", name, fault.Message)
}

// complete registers the values that the shell completes for a flag.
func complete(cmd *cobra.Command, flag string, values []string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// checkNames returns an error for services, nodes, namespaces, pods and machines in the filters that the flow API
// does not know. A failed request is no error here: the caller's own request reports it.
func checkNames(ctx context.Context, observer observe.Observer, q observe.FlowQuery) error {
	sources, endpoints := unaddressed(q.Source), unaddressed(q.Endpoint)
	if q.Service+q.Pod+q.Node+q.Namespace+sources+endpoints == "" {
		return nil
	}
	n, err := namesAt(ctx, observer)
	if err != nil {
		return nil
	}
	if err := missing("service", "service", q.Service, n.services); err != nil {
		return err
	}
	if len(n.nodes) > 0 {
		if err := missing("node", "node", q.Node, n.nodes); err != nil {
			return err
		}
	}
	if len(n.pods) == 0 { // without --pod-names a daemon has no pods
		return nil
	}
	if err := missing("namespace", "namespace with services or pods", q.Namespace, n.namespaces); err != nil {
		return err
	}
	if err := missing("pod", "pod", q.Pod, n.pods); err != nil {
		return err
	}
	if err := missing("source", "pod, node or client", sources, n.machines()); err != nil {
		return err
	}
	return missing("endpoint", "pod, node or client", endpoints, n.machines())
}

// unaddressed are the values of a list that are no addresses.
func unaddressed(list string) string {
	values := strings.Split(list, ",")
	return strings.Join(slices.DeleteFunc(values, func(s string) bool {
		s = strings.TrimSpace(s)
		_, err := netip.ParseAddr(s)
		_, portErr := netip.ParseAddrPort(s)
		_, prefixErr := netip.ParsePrefix(s)
		return err == nil || portErr == nil || prefixErr == nil
	}), ",")
}

// missing finds the first value of a list, NAME, NAMESPACE/NAME or either with a port, that is
// none of the names.
func missing(flag, kind, values string, names []string) error {
	for value := range strings.SplitSeq(values, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(value), ":")
		if name == "" || slices.ContainsFunc(names, func(n string) bool { return n == name || strings.HasSuffix(n, "/"+name) }) {
			continue
		}
		if len(names) == 0 {
			return fmt.Errorf("--%s %s: no %s exists", flag, name, kind)
		}
		return fmt.Errorf("--%s %s: no such %s%s; known: %s", flag, name, kind, nearest.Hint(name, names), nearest.Few(names))
	}
	return nil
}
