package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/paper/savednode"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// whyFlags are the flags of nfqproxy why.
type whyFlags struct {
	clusterFlags
	question diagnose.Question
	at       string
	walk     text.Walk
	output   string
}

func newWhyCommand(connect connector) *cobra.Command {
	var f whyFlags
	cmd := &cobra.Command{
		Use:   "why SOURCE DESTINATION[:PORT] [--objects PATH | --kubeconfig FILE] [--node BUNDLE]",
		Short: "Find out why a service does not answer",
		Long: `Find out why a service does not answer: the cause, what to do about it, the node that
decides, and whether each endpoint would answer. The objects come from files (--objects),
from an API server (--kubeconfig, --context), or else from your running lab, or else from
the API server of $KUBECONFIG. As a kubectl plugin, it reads the objects of kubectl's
cluster; nothing has to be installed there. In a lab, recent flows count too: endpoints
that refuse connections or do not answer, and firewall rules of the nodes that drop flows.

SOURCE is a Pod (NAMESPACE/NAME, or NAME), a Node, an address, or "outside" (of the
cluster). DESTINATION is a Service, as NAME.NAMESPACE, NAMESPACE/NAME, or NAME in the
namespace of the source; a Pod, as pod/NAMESPACE/NAME; a Node; or an address. A Service
with one port needs no PORT. A protocol may follow a port, as in kube-dns:53/UDP.

For a service, the node where the packet starts decides; for a node port, the node that
has the address. --node says where a packet from outside arrives, if that can be any node.

With a node's bundle (nfqproxy collect) as --node, the connection is also followed through
that node's rules, its IPVS virtual servers and its firewall, and what they do for the
service is compared with the objects. Without --objects and --kubeconfig, the services are
those of the rules, and the source is an address, the node or "outside".

With --history and --at, the flows recorded in the five minutes before that time count
instead of recent ones. The objects are the current ones.

The answer is what objects, flows and rules show. Network policies count as written in
their objects; without a bundle, other firewalls, routes, and programs that had no flow
yet are not known. The exit code is 0 if the connection reaches an endpoint, 1 if it does
not, and 2 on an error.`,
		Example: `  nfqproxy why shell my-nginx-service.default:80
  nfqproxy why shop/client web.shop:80 --kubeconfig ~/.kube/config
  nfqproxy why shop/client web.shop:80 --history DIR --at 14:03
  kubectl get svc,endpointslices,nodes,pods -A -o yaml |
      nfqproxy why outside 172.20.0.2:30080 --objects -
  nfqproxy why 10.244.1.9 web.shop:80 --node node-a.tar.gz`,
		Annotations: ending(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("%s needs SOURCE and DESTINATION, and no more (see %[1]s --help)", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.question.From, f.question.To = args[0], args[1]
			answer, err := f.ask(cmd.Context(), connect, cmd.InOrStdin(), cmd.ErrOrStderr())
			if err == nil {
				err = f.write(cmd.OutOrStdout(), answer)
			}
			if err != nil {
				return err
			}
			if !answer.Works {
				return answerNo
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.clusterFlags.add(cmd)
	f.table.podsSuffice = true
	flags.Lookup("node").Usage = "node where the packet starts or arrives, if source and destination do not show it; or a node's bundle from nfqproxy collect, to follow the packet through its rules, too: a .tar.gz, or a directory with a slash, such as ./node-a"
	namespaceFlag(cmd, &f.question.Namespace, "a Pod given without one, and of a Service if the source is not a Pod", "that of the kubeconfig's context, or default")
	historyFlag(cmd, &f.clusterFlags.history, "use recorded flows")
	flags.StringVar(&f.at, "at", "", "time in --history to look at: a time of day (14:03), a duration (2h) or a time (RFC 3339) (default: now)")
	flags.StringVar(&f.question.Protocol, "protocol", "", "tcp, udp or sctp (default: that of the service port)")
	walkFlag(cmd, &f.walk, "; prints the decision as nfqproxy explain does", text.WalkNone)
	outputFlag(cmd, &f.output)
	return cmd
}

func (f *whyFlags) ask(ctx context.Context, connect connector, stdin io.Reader, stderr io.Writer) (*diagnose.Answer, error) {
	if path := bundleIn(f.table.name); path != "" {
		return f.askBundle(ctx, path, stdin, stderr)
	}
	return f.answer(ctx, connect, stdin, stderr)
}

func (f *whyFlags) answer(ctx context.Context, connect connector, stdin io.Reader, stderr io.Writer) (*diagnose.Answer, error) {
	if f.at != "" && f.clusterFlags.history == "" {
		return nil, errors.New("--at requires --history: without one, only recent flows are known")
	}
	d, err := f.doctor(ctx, connect, stdin, stderr)
	if err != nil {
		return nil, err
	}
	if f.at != "" {
		if d.At, err = timeOfDay(f.at, time.Now()); err != nil {
			return nil, fmt.Errorf("--at %w", err)
		}
		note(stderr, fmt.Sprintf("the flows are those until %s, the objects those of now", d.At.Format("2006-01-02 15:04:05")))
	}
	if f.question.Node = f.table.name; f.question.Namespace == "" {
		f.question.Namespace = f.namespace()
	}
	return d.Why(ctx, f.question)
}

func (f *whyFlags) write(w io.Writer, answer *diagnose.Answer) error {
	if f.output != "text" {
		return writeValue(w, f.output, struct {
			Version int `json:"version"`
			*diagnose.Answer
		}{diagnose.Version, answer})
	}
	_, err := io.WriteString(w, text.StyleFor(w).Answer(answer, f.walk))
	return err
}

// askBundle answers with the bundle of a node, and with objects if flags name some.
func (f *whyFlags) askBundle(ctx context.Context, path string, stdin io.Reader, stderr io.Writer) (*diagnose.Answer, error) {
	if f.lab != "" || f.server != "" || f.daemons.flags.Changed("cluster") {
		return nil, fmt.Errorf("--node %s, which is a bundle, cannot be used with --lab, --server and --cluster: give one of them", path)
	}
	node, err := savednode.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--node: %w", err)
	}
	f.table.name = "" // its name among the objects is not known yet
	var objects *manifest.Objects
	if f.namesObjects() {
		if objects, err = f.read(ctx, stdin, stderr); err != nil {
			return nil, err
		}
		note(stderr, objects.Notes...)
		note(stderr, objects.Made.Note(func(*manifest.MadeItem) bool { return true }))
	}
	v, err := inputOf(node).view(stderr, new(nodeFiles), objects, "")
	if err != nil {
		return nil, err
	}
	config, err := f.configure(v)
	if err != nil {
		return nil, err
	}
	if objects != nil {
		if err := v.replaceDaemon(func(string) (servicetable.NodeConfig, error) { return config, nil }); err != nil {
			return nil, err
		}
	}
	if f.question.Node = v.name; f.question.Namespace == "" && objects != nil {
		f.question.Namespace = f.namespace()
	}
	cluster := diagnose.New(v.objects, config)
	answer, err := cluster.Why(f.question)
	if err != nil {
		if objects == nil {
			err = fmt.Errorf("%w (%s is a bundle of rules, which have no Pods and no other names: give the objects with --objects or --kubeconfig)", err, path)
		}
		return nil, err
	}
	return answer, f.see(answer, v, cluster, objects == nil, stderr)
}

// configure is the configuration of the node. Without objects, those that its rules show become the view's.
func (f *whyFlags) configure(v *nodeView) (servicetable.NodeConfig, error) {
	host, _, err := v.host(iptables.IPv4)
	if err != nil {
		return servicetable.NodeConfig{}, err
	}
	nodes := v.services()
	if v.objects != nil {
		if len(v.objects.Nodes) == 0 {
			v.objects.Nodes = diagnose.ObjectsOf(v.name, nodes, host).Nodes
		}
		f.table.name = v.name
		host, _, err := v.host(iptables.IPv4)
		if err != nil {
			return servicetable.NodeConfig{}, err
		}
		diagnose.AddAddresses(v.objects, v.name, host)
		return f.table.configure(v.objects)
	}
	if len(nodes) == 0 {
		why := v.in.why()
		if why == "" {
			for _, d := range v.dumps {
				if text := audit.Read(d).OtherMode(); text != "" {
					why = ": " + text
				}
			}
		}
		return servicetable.NodeConfig{}, fmt.Errorf("--node %s: the bundle shows no Services%s: give the objects with --objects or --kubeconfig", v.in.node.Path, why)
	}
	v.objects = diagnose.ObjectsOf(v.name, nodes, host)
	return audit.Config(v.name, nodes...), nil
}

// see adds to an answer what the node does. alone: there are no other objects than those of its rules.
func (f *whyFlags) see(answer *diagnose.Answer, v *nodeView, cluster *diagnose.Cluster, alone bool, stderr io.Writer) error {
	family := answer.Family()
	if family == iptables.FamilyUnknown {
		return nil
	}
	var dumps []*iptables.Dump
	var err error
	if len(v.dumps) > 0 {
		if dumps, err = v.of(family); err != nil {
			return err
		}
	}
	known, notes, err := v.known(family, dumps)
	if err != nil {
		return err
	}
	note(stderr, notes...)
	if alone {
		known.Services = nil // its names are made up
	}
	saved := &diagnose.Saved{Node: v.name, Dumps: dumps, Known: known, Alone: alone, Daemon: v.daemon}
	if !alone {
		if saved.Differences, _, err = v.differences(family); err != nil {
			return err
		}
	}
	if err := answer.See(saved); err != nil {
		return fmt.Errorf("--node %s: %w", v.in.node.Path, err)
	}
	entries, _, err := v.in.node.Entries()
	if err != nil {
		return fmt.Errorf("--node: %w", err)
	}
	if !alone && answer.Node == v.name {
		answer.AboutEntries(cluster.ConnectionEntries(entries))
	}
	if count, limit, ok := v.in.node.Connections(); ok && answer.Node == v.name {
		if full := diagnose.FullTable(v.name, count, limit); full != nil {
			answer.Notes = append(answer.Notes, *full)
			if count >= limit {
				answer.Unless = cmp.Or(answer.Unless, "the connection table of "+v.name+", which is full, has no room for it")
			}
			answer.Settle()
		}
	}
	if answer.Node == v.name {
		for _, l := range v.trackingLosses(answer.Notes) {
			if l.Code != diagnose.SameTuple || answer.Record != nil && answer.Record.Protocol == decision.UDP.String() {
				answer.Notes = append(answer.Notes, l)
			}
		}
	}
	return nil
}
