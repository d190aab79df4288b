package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/view/terminal"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/algorithms"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
)

// replayFlags are the flags of nfqproxy replay.
type replayFlags struct {
	table      tableFlags
	rules      []string
	host       hostFlags
	output     string
	write      string
	walk       text.Walk
	seed       uint64
	generation uint64
	estimate   estimateFlags
	given      func(flag string) bool
}

func newReplayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay FILE (--objects PATH | --rules FILE | --node BUNDLE)",
		Short: "Replay a capture or flow log: decide its flows again",
		Long: `Replay a capture or a flow log: decide its flows again.

If FILE is a capture (pcap or pcapng, - for standard input), nfqproxy decides every new
flow in it: from the objects, as the daemon on this node would, or by a node's rules. What
counts as a new flow is the same as for the daemon: a TCP SYN, an SCTP INIT, or a UDP
datagram that connection tracking would have no entry for. Times are those of the capture.
Packets from the node's addresses count as sent by the node itself; they leave it already
translated, so a capture on the node does not show their original destination. A packet
that was captured several times, as on "any", counts once, even if one copy is translated.
With -o pcap, the output has the packets as they would leave the node.

If FILE is a flow log, nfqproxy decides its records again with the recorded random draws,
and prints one line for each difference: LINE FLOW: FIELD: RECORDED, now NOW. The exit
code is then 1. Only this node's records count; --generation selects those of one
generation of the service table.

With --balance, another algorithm decides the flows of a log of "nfqproxy flows -o jsonl":
the output shows which flows would go elsewhere or fail, and how many connections each
endpoint would have. Connections stay open for as long as they did. --estimate shows how
long connections would have taken, how many would have been refused or unanswered, and how
evenly they would have been spread, with confidence intervals, from the recorded selection
probabilities.`,
		Example: `  nfqproxy replay capture.pcap --objects cluster.yaml --node node-a --cluster-cidr 10.244.0.0/16
  tcpdump -i any -w - | nfqproxy replay - --objects cluster.yaml -o json
  nfqproxy replay capture.pcapng --objects cluster.yaml -o pcap --write translated.pcapng
  nfqproxy replay capture.pcap --rules iptables-save.txt --address 172.20.0.2/16
  nfqproxy replay flows.jsonl --objects cluster.yaml --node node-a
  nfqproxy replay flows.jsonl --objects cluster.yaml --node node-a --balance lc --seed 1
  nfqproxy replay flows.jsonl --objects cluster.yaml --node node-a --balance rr --estimate`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("replay takes one FILE, a capture or a flow log, or - for standard input; got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.given = cmd.Flags().Changed
			if err := f.check(); err != nil {
				return err
			}
			return f.run(args[0], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.table.addOptional(flags)
	f.table.algorithms.Add(flags, "Or ring, ring-table, hrw, jump, multiprobe, bounded, wpod(N) or rr-random, which the daemon does not have. Only for a flow log")
	f.table.further = []func(*balance.Registry){func(r *balance.Registry) { algorithms.Add(r, nil) }}
	flags.StringArrayVar(&f.rules, "rules", nil, "rules that decide, instead of --objects: output of iptables-save, ip6tables-save or nft list ruleset; may be repeated")
	oneOf(cmd, &f.output, "output", "o", ": lines for people, with times in UTC; records as in the flow log; or the packets as they would leave the node", "text", "json", "pcap")
	flags.Lookup("node").Usage += orBundle
	flags.StringVar(&f.write, "write", "", "output file (default: standard output)")
	walkFlag(cmd, &f.walk, "; in JSON: as steps", text.WalkNone)
	flags.Uint64Var(&f.seed, "seed", 0, "seed of the random selection, for reproducible results (default: random)")
	f.estimate.add(flags)
	f.host.add(flags)
	flags.Uint64Var(&f.generation, "generation", 0, "with a flow log: only the records of this generation of the service table (default: all)")
	return cmd
}

// bundle is the bundle of the node that decides by its rules; empty: there is none.
func (f *replayFlags) bundle() string { return bundleIn(f.table.name) }

// byRules reports whether rules decide, and not objects.
func (f *replayFlags) byRules() bool { return f.given("rules") || f.bundle() != "" }

// rulesFlag is the flag with the rules.
func (f *replayFlags) rulesFlag() string {
	if f.bundle() != "" {
		return "--node"
	}
	return "--rules"
}

// check validates the flags.
func (f *replayFlags) check() error {
	switch {
	case f.given("objects") && f.given("rules"):
		return errors.New("--objects and --rules cannot be used together: give one of them")
	case f.given("objects") && f.bundle() != "":
		return fmt.Errorf("--objects and --node %s, which is a bundle, cannot be used together: give one of them", f.bundle())
	case !f.given("objects") && !f.byRules():
		return errors.New("--objects, --rules or --node is required: Services and EndpointSlices, a dump of iptables-save, or a bundle")
	}
	var table tableFlags
	var host hostFlags
	if err := f.estimate.check(f.given); err != nil {
		return err
	}
	if flag := firstGiven(func(flag string) bool { return f.given(flag) && (flag != "node" || f.bundle() == "") }, table.addOptional); flag != "" && f.byRules() {
		return fmt.Errorf("--%s requires --objects; with --rules, the dump has everything except the node's addresses (give --address)", flag)
	}
	if flag := firstGiven(f.given, host.add); flag != "" && f.given("objects") {
		return fmt.Errorf("--%s requires --rules; with --objects, the node's addresses come from its Node object or --node-ip", flag)
	}
	return nil
}

func (f *replayFlags) run(name string, stdin io.Reader, stdout, stderr io.Writer) error {
	switch {
	case name == "-" && slices.Contains(f.rules, "-"):
		return errors.New("--rules - and FILE -: only one of them can be standard input")
	case name == "-" && f.table.readsStdin():
		return errors.New("--objects - and FILE -: only one of them can be standard input")
	}
	in, err := openInput(stdin, name)
	if err != nil {
		return err
	}
	defer in.Close()
	name = rulesName(name)
	out, err := createOutput(f.write, stdout, f.output == "pcap")
	if err != nil {
		return err
	}
	defer out.discard()
	buffered := bufio.NewWriter(out)
	input := bufio.NewReader(flushing{in, buffered})
	switch begin := peek(input); {
	case len(begin) == 0:
		return fmt.Errorf("%s: it is empty: want a capture or a flow log", name)
	case replay.IsFlowLog(begin):
		err = f.replayLog(name, input, stdin, buffered, stderr)
	default:
		err = f.replayCapture(name, input, stdin, out, buffered, stderr)
	}
	if err != nil && !errors.Is(err, answerNo) {
		return err
	}
	if failed := buffered.Flush(); failed != nil {
		return failed
	}
	if failed := out.keep(); failed != nil {
		return failed
	}
	return err
}

// peek returns the first bytes of a file after white space.
func peek(in *bufio.Reader) []byte {
	const enough = 512
	b, _ := in.Peek(1)
	if len(b) == 0 || !bytes.ContainsAny(b, " \t\r\n{") {
		return b
	}
	b, _ = in.Peek(enough)
	return b
}

func (f *replayFlags) replayCapture(name string, in, stdin io.Reader, out *output, buffered *bufio.Writer, stderr io.Writer) error {
	capture, err := replay.NewCapture(in)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case f.given("generation"):
		return fmt.Errorf("--generation requires a flow log, but %s is a capture", name)
	case f.given("balance"):
		return fmt.Errorf("--balance requires a flow log, but %s is a capture, which does not show when connections end", name)
	case f.output == "pcap" && width(out.Writer) != nil:
		return errors.New("-o pcap: standard output is a terminal: give --write FILE, or redirect the output")
	}
	decider, err := f.decider(stdin, stderr)
	if err != nil {
		return err
	}
	r := replay.New(decider)
	var packets io.Writer
	emit := func(*flow.Record) error { return nil }
	switch f.output {
	case "pcap":
		r.Translate, packets = true, buffered
	case "json":
		enc := json.NewEncoder(buffered)
		enc.SetEscapeHTML(false) // "->" in rules is to stay readable
		emit = func(r *flow.Record) error { return enc.Encode(r) }
	default:
		style := text.StyleFor(out.Writer)
		emit = func(r *flow.Record) error {
			_, err := fmt.Fprint(buffered, style.Line(r)+"\n"+style.Steps(r.Steps, "    ", f.walk))
			return err
		}
	}
	if err := r.Run(capture, packets, emit); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err = r.Summary().WriteTo(stderr)
	return err
}

// chosenSeed returns the flag's seed, or a random one.
func (f *replayFlags) chosenSeed() uint64 {
	if f.given("seed") {
		return f.seed
	}
	return rand.Uint64()
}

// draws are the random numbers.
func (f *replayFlags) draws() *rand.Rand { return rand.New(rand.NewPCG(f.chosenSeed(), 0)) }

// decider makes the decider of the flows.
func (f *replayFlags) decider(stdin io.Reader, stderr io.Writer) (replay.Decider, error) {
	draws := f.draws()
	if f.byRules() {
		return f.ruleDecider(stdin, stderr, draws)
	}
	in, err := f.table.load(stdin, stderr)
	if err != nil {
		return nil, err
	}
	return replay.ByTable(in.table, draws, f.walk != text.WalkNone), nil
}

// writeReport writes a report, as JSON or as text.
func (f *replayFlags) writeReport(out io.Writer, report io.WriterTo) (err error) {
	if f.output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", " ")
		return e.Encode(report)
	}
	_, err = report.WriteTo(out)
	return err
}

// output is standard output, or a file that has its name only once it is complete.
type output struct {
	io.Writer
	file *os.File // nil: standard output
	name string
}

func createOutput(name string, stdout io.Writer, binary bool) (*output, error) {
	switch {
	case name == "" && binary:
		return &output{Writer: terminal.Raw(stdout)}, nil
	case name == "":
		return &output{Writer: stdout}, nil
	}
	// Beside the file: a name is given only within a file system.
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return nil, fmt.Errorf("--write %s: %w", name, err)
	}
	if binary {
		return &output{file, file, name}, nil
	}
	return &output{terminal.NewWriter(file), file, name}, nil
}

// keep renames the complete file to its final name.
func (o *output) keep() error {
	if o.file == nil {
		return nil
	}
	var err error
	if w, ok := o.Writer.(*terminal.Writer); ok {
		err = w.Flush()
	}
	err = errors.Join(err, o.file.Chmod(0o644), o.file.Close())
	if err == nil {
		err = os.Rename(o.file.Name(), o.name)
	}
	if err != nil {
		return fmt.Errorf("--write %s: %w", o.name, err)
	}
	o.file = nil
	return nil
}

// discard removes the file, if it was not kept.
func (o *output) discard() {
	if o.file != nil {
		_ = o.file.Close()
		_ = os.Remove(o.file.Name())
	}
}

// ruleDecider makes a decider from the rules of files or a bundle. Guesses about the host go to stderr.
func (f *replayFlags) ruleDecider(stdin io.Reader, stderr io.Writer, draws *rand.Rand) (replay.Decider, error) {
	rules := replay.Rules{Machines: make(map[decision.Family]*netfilter.Machine), Steps: f.walk != text.WalkNone}
	var guessed []netfilter.Guess
	in, err := newRuleInput(stdin, f.rules, f.bundle())
	if err != nil {
		return nil, err
	}
	var known *netfilter.Host
	if in.node == nil {
		if known, err = f.host.load(new(netfilter.Host)); err != nil {
			return nil, err
		}
	}
	all, err := in.dumps(stderr, iptables.FamilyUnknown)
	if err != nil {
		return nil, err
	}
	sets, err := in.sets("")
	if err != nil {
		return nil, err
	}
	for _, family := range familiesOf(all) {
		dumps, err := in.of(all, family)
		if err != nil {
			return nil, err
		}
		if in.node != nil {
			if known, err = in.host(&f.host, family, stderr); err != nil {
				return nil, err
			}
		}
		host, guesses := netfilter.GuessHost(dumps, known, nil)
		guessed = append(guessed, guesses...)
		if rules.Machines[family], err = netfilter.New(dumps, sets, host, netfilter.Options{}); err != nil {
			return nil, fmt.Errorf("%s %s: %w", in.flag(), filesOf(dumps), err)
		}
	}
	for _, g := range guessed {
		fmt.Fprintln(stderr, "nfqproxy: guessed:", g.Text)
	}
	return replay.ByRules(rules, draws), nil
}

// firstGiven is the first of the flags that was given; empty: none of them.
func firstGiven(given func(flag string) bool, add func(*pflag.FlagSet)) (name string) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	add(flags)
	flags.VisitAll(func(flag *pflag.Flag) {
		if name == "" && given(flag.Name) {
			name = flag.Name
		}
	})
	return name
}
