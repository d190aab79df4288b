package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/text"
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
