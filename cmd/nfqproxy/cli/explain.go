package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/crossnode"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/resolve"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// explainFlags are the flags of nfqproxy explain.
type explainFlags struct {
	objectSource
	packet      flow.Question
	packets     string
	seed        uint64
	output      string
	reply       bool
	walk        text.Walk
	rules       string // a dump of the host's own rules
	inNamespace string // of names without one
}

func newExplainCommand() *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain [--objects PATH | --kubeconfig FILE] (--protocol P --source A[:PORT] --destination A:PORT | --packets FILE)",
		Short: "Explain what would happen to a packet, and why",
		Long: `Explain what would happen to the first packet of a flow, and why: the service, the walk
through kube-proxy's chains, and for every endpoint why it was selected or not. It needs
neither root nor a kernel. The objects come from files (--objects), from an API server
(--kubeconfig, --context), or else from your running lab, or else from the API server of
$KUBECONFIG; as a kubectl plugin, from kubectl's cluster.

Sources and destinations are addresses, with [IPv6] in brackets if a port follows, or
names: [NAMESPACE/]NAME[:PORT] or pod/[NAMESPACE/]NAME[:PORT] for a pod, node/NAME[:PORT],
and service/[NAMESPACE/]NAME:PORT, by the port's number or name. Names without a namespace
are in --namespace. Pods are known from Pod objects, from endpoints that name them, and
from a lab's file.

Each node decides for itself: which endpoints are local, which zone counts and which
addresses serve node ports depends on the node. The deciding node is that of the source
or, for packets from outside, the one with the destination's address, unless --node
selects another. If the packet goes on to a second node that also decides about it, that
decision follows.

With --packets nfqproxy explains each line as it arrives, and stops at the first
invalid one. -o json prints one line for each packet.`,
		Example: `  nfqproxy explain --objects cluster.yaml --cluster-cidr 10.244.0.0/16 \
      --protocol tcp --source 10.244.1.9 --destination 10.96.118.136:80
  echo '{"protocol":"udp","source":"pod/default/shell","destination":"10.96.0.10:53"}' |
      nfqproxy explain --objects cluster.yaml --packets - -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd.Flags().Changed); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), cmd.Flags().Changed("seed"))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.addTo(cmd)
	f.context = flags.String("context", "", "context of the kubeconfig (default: the current context)")
	flags.Lookup("node").Usage = "name of the node that decides (default: the only Node object, the node of the source, or the one with the destination's address)" + orBundle
	flags.StringVar(&f.packet.Protocol, "protocol", "", "tcp, udp or sctp")
	flags.StringVar(&f.packet.Source, "source", "", "source of the packet; the port is optional")
	flags.StringVar(&f.packet.Destination, "destination", "", "destination of the packet, with its port")
	namespaceFlag(cmd, &f.inNamespace, "names without one in --source, --destination and --packets", "that of the kubeconfig's context, or default")
	flags.BoolVar(&f.packet.Local, "local", false, "the node itself sends the packet")
	flags.StringVar(&f.packet.InInterface, "in-interface", "", "input interface of the packet; only BridgeInterface and InterfaceNamePrefix use it")
	flags.StringVar(&f.packets, "packets", "", `explain many packets: JSON lines {"protocol","source","destination","local","inInterface"} from this file, - for standard input; session affinity applies from one line to the next`)
	f.table.algorithms.Add(flags, "Default: from the annotation nfqproxy.io/balance of the Service, or random")
	flags.Uint64Var(&f.seed, "seed", 0, "seed of the random selection, for reproducible results (default: random)")
	flags.BoolVar(&f.reply, "follow-reply", false, "also show the path of the reply")
	flags.StringVar(&f.rules, "rules", "", "rules of the node, from iptables-save or nft list ruleset: apply its own masquerade rules, as the daemon does")
	walkFlag(cmd, &f.walk, "", text.WalkWords)
	outputFlag(cmd, &f.output)
	return cmd
}

// check finds missing and contradicting flags; given reports whether a flag was set.
func (f *explainFlags) check(given func(flag string) bool) error {
	for _, other := range []struct{ flag, path string }{{"packets", f.packets}, {"rules", f.rules}} {
		if other.path == "-" && f.table.readsStdin() {
			return fmt.Errorf("--objects - and --%s -: only one of them can be standard input", other.flag)
		}
	}
	packet := []string{"protocol", "source", "destination"}
	if given("packets") {
		for _, flag := range append(packet, "local", "in-interface") {
			if given(flag) {
				return fmt.Errorf("--packets and --%s cannot be used together: with --packets each line describes a whole packet", flag)
			}
		}
	} else {
		to, named, err := diagnose.CutProtocol(f.packet.Destination)
		switch {
		case err != nil:
			return fmt.Errorf("--destination %w", err)
		case named != 0 && given("protocol") && !strings.EqualFold(f.packet.Protocol, named.String()):
			return fmt.Errorf("--protocol is %s, but --destination %s is %s", f.packet.Protocol, f.packet.Destination, named)
		case named != 0:
			f.packet.Destination, f.packet.Protocol = to, named.String()
		}
		var missing []string
		for _, flag := range packet {
			if !given(flag) && (flag != "protocol" || named == 0) {
				missing = append(missing, "--"+flag)
			}
		}
		switch {
		case len(missing) == len(packet):
			return errors.New("a packet is required: give --protocol, --source and --destination, or --packets")
		case len(missing) > 0:
			return fmt.Errorf("a packet needs --protocol, --source and --destination; missing: %s", strings.Join(missing, ", "))
		}
	}
	return nil
}

func (f *explainFlags) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, seeded bool) error {
	objects, err := f.read(ctx, stdin, stderr)
	if err != nil {
		return err
	}
	var host *ruleInput
	if path := bundleIn(f.table.name); path != "" || f.rules != "" {
		var files []string
		if f.rules != "" {
			files = []string{f.rules}
		}
		if host, err = newRuleInput(stdin, files, path); err != nil {
			return err
		}
		if host.node != nil {
			f.table.name = nodeNamed(objects, host.node)
		}
	}
	in, err := f.table.build(objects, stderr)
	if err != nil {
		return err
	}
	seed := f.seed
	if !seeded {
		seed = rand.Uint64()
	}
	out := bufio.NewWriter(stdout)
	e := newExplainer(f, in, rand.New(rand.NewPCG(seed, 0)))
	e.out, e.style, e.stderr = out, text.StyleFor(stdout), stderr
	e.names.Namespace = cmp.Or(f.inNamespace, f.namespace(), "default")
	if host != nil {
		if e.hostRules, err = hostRules(stderr, host, in.table); err != nil {
			return err
		}
	}
	if f.packets == "" {
		err = e.explain(f.packet)
	} else {
		err = e.explainAll(f.packets, stdin)
	}
	return errors.Join(err, out.Flush())
}

// explainer explains packets one after the other.
type explainer struct {
	in         input
	random     *rand.Rand
	places     *crossnode.Places
	simulators map[string]*crossnode.Simulator // by node
	names      *resolve.Names
	hostRules  explain.HostRules // nil: none
	flags      *explainFlags
	out        *bufio.Writer
	stderr     io.Writer
	noted      map[*manifest.MadeItem]bool // on stderr
	style      text.Style
	explained  int
}

func newExplainer(f *explainFlags, in input, r *rand.Rand) *explainer {
	e := &explainer{
		in: in, random: r, flags: f, places: crossnode.PlacesOf(in.objects.Nodes, in.objects.Pods),
		simulators: make(map[string]*crossnode.Simulator), noted: make(map[*manifest.MadeItem]bool), names: resolve.NamesOf(in.table, in.objects.Pods),
	}
	for _, n := range in.objects.Nodes {
		e.names.AddNode(n.Name, servicetable.NodeAddresses(n))
	}
	for _, s := range in.objects.Services {
		if why := servicetable.Unserved(s); why != "" {
			e.names.AddUnserved(s.Namespace+"/"+s.Name, why)
		}
	}
	return e
}

// node is the one that decides a packet. Flags that describe a node without a name are about that one.
func (e *explainer) node(p *decision.Packet) string {
	if e.in.config.Name != "" || e.flags.table.node.Given("node-ip") || e.flags.table.node.Given("zone") {
		return e.in.config.Name
	}
	return e.places.Origin(p.Source.Addr(), p.Destination.Addr())
}

// table is the service table of a node. The flags that describe one node are not about others.
func (e *explainer) table(node string) *decision.Table {
	if node == e.in.config.Name {
		return e.in.table
	}
	config := e.in.config
	config.Name = node
	if node != "" {
		config.IPs, config.Zone = nil, ""
	}
	t, _ := servicetable.Table(&e.in.objects.Objects, config)
	return t
}

// simulator is that of a node.
func (e *explainer) simulator(node string) *crossnode.Simulator {
	s := e.simulators[node]
	if s == nil {
		objects := e.in.objects
		s = crossnode.New(e.table(node), e.random, crossnode.Cluster{
			Nodes: objects.Nodes, Pods: objects.Pods, EndpointSlices: objects.EndpointSlices, Algorithms: e.in.config.Algorithms, Table: e.table,
		})
		s.FollowReply, s.HostRules = e.flags.reply, e.hostRules
		e.simulators[node] = s
	}
	return s
}

func (e *explainer) explain(q flow.Question) error {
	p, err := e.names.Packet(q)
	if err != nil {
		return err
	}
	r := e.simulator(e.node(&p)).Decide(&p)
	e.note(&p, r)
	e.explained++
	if e.flags.output != "text" {
		return writeItem(e.out, e.flags.output, r)
	}
	if e.explained > 1 {
		fmt.Fprintln(e.out)
	}
	if service, _, _ := strings.Cut(r.Service, ":"); r.Reason == decision.NoEndpoints.String() {
		if why := e.in.objects.EndpointsNotShown(service); why != "" { // the decision is one about a Service without endpoints
			_, err = fmt.Fprintf(e.out, "%s %s -> %s\n\n  service   %s\n  verdict   not known, as its endpoints are not: %s\n", r.Protocol, r.Source, r.Destination, r.Service, why)
			return err
		}
	}
	_, err = e.out.WriteString(e.style.Explain(r, e.flags.walk))
	for _, next := range r.Others {
		_, err = fmt.Fprintf(e.out, "\nnext, on node %s\n\n%s", next.Node, e.style.Explain(next, e.flags.walk))
	}
	return err
}

// note prints how the objects were read, before the first answer, and what was made up of what an answer is about.
func (e *explainer) note(p *decision.Packet, r *flow.Record) {
	objects := e.in.objects
	if e.explained == 0 {
		note(e.stderr, objects.Notes...)
		note(e.stderr, objects.Doubts()...)
		if len(objects.EndpointSlices) == 0 && objects.Made != nil {
			note(e.stderr, "the files contain no EndpointSlices: whether Services have endpoints is not known; add the output of kubectl get endpointslices -A -o yaml")
		}
	}
	ends := []string{p.Source.Addr().String(), p.Destination.Addr().String()}
	note(e.stderr, objects.Made.Note(func(i *manifest.MadeItem) bool {
		if e.noted[i] {
			return false
		}
		concerns := slices.ContainsFunc(i.Addresses, func(a string) bool { return slices.Contains(ends, a) })
		for _, r := range append([]*flow.Record{r}, r.Others...) {
			service, _, _ := strings.Cut(r.Service, ":")
			concerns = concerns || slices.Contains(i.Services, service)
		}
		e.noted[i] = concerns
		return concerns
	}))
}

// explainAll explains one packet a line, up to the first invalid line.
func (e *explainer) explainAll(name string, stdin io.Reader) error {
	in, err := openInput(stdin, name)
	if err != nil {
		return fmt.Errorf("--packets: %w", err)
	}
	defer in.Close()
	name = rulesName(name)
	err = readQuestions(flushing{in, e.out}, e.explain)
	switch {
	case err != nil:
		return fmt.Errorf("--packets: %s: %w", name, err)
	case e.explained == 0:
		return fmt.Errorf(`--packets: %s: no packets: want lines such as {"protocol":"tcp","source":"10.244.1.9","destination":"10.96.0.1:443"}`, name)
	}
	return nil
}

// flushing is a reader that flushes the output before it waits for more input: after each
// line a writer gets its result.
type flushing struct {
	io.Reader
	out *bufio.Writer
}

func (f flushing) Read(p []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.Reader.Read(p)
}

// hostRules reads the host's own nat rules. The host's addresses are those of its bundle, or else the node's; everything
// else that the rules lack is guessed.
func hostRules(stderr io.Writer, in *ruleInput, t *decision.Table) (explain.HostRules, error) {
	all, err := in.dumps(stderr, iptables.IPv4)
	if err != nil {
		return nil, err
	}
	family := familiesOf(all)[0]
	dumps, err := in.of(all, family)
	if err != nil {
		return nil, err
	}
	known, err := in.host(new(hostFlags), family, stderr)
	if err != nil {
		return nil, err
	}
	if !known.Complete() {
		for _, a := range t.Node().Addresses {
			if !known.Has(a) {
				known.AddAddress("", netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	host, _ := netfilter.GuessHost(dumps, known, nil)
	var tables []hostnat.Table
	for _, d := range dumps {
		tables = append(tables, hostnat.Table{Name: d.File, Dump: d})
	}
	r, err := hostnat.Compile(tables, host)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", in.flag(), filesOf(dumps), err)
	}
	return r, nil
}

// maxLineSize is how long a line may be; a question has some hundred bytes.
const maxLineSize = 1 << 20

// readQuestions reads one question from each line that is not empty and calls answer with it. It ends
// at the first error, of a line or of answer; the error names the line.
func readQuestions(in io.Reader, answer func(flow.Question) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLineSize)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		q, err := parseQuestion(line)
		if err == nil {
			err = answer(q)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// parseQuestion reads one line. A misspelled field is an error: if it were ignored, the answer would be
// about another packet.
func parseQuestion(line []byte) (flow.Question, error) {
	var q flow.Question
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(&q)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("extra text after the object: want one object per line")
		}
	}
	if err == nil {
		return q, nil
	}
	why := strings.TrimPrefix(err.Error(), "json: ")
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field != "":
		why = fmt.Sprintf("%s is a %s, not a %s", kind.Field, kind.Type, kind.Value)
	case errors.As(err, &kind):
		why = "this is a JSON " + kind.Value
	case errors.Is(err, io.ErrUnexpectedEOF):
		why = "the line ends inside the object"
	}
	return flow.Question{}, fmt.Errorf(`want an object such as {"protocol":"tcp","source":"10.244.1.9","destination":"10.96.0.1:443"}: %s`, why)
}
