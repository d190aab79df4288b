package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/simulate"
)

// explainFlags are the flags of nfqproxy explain.
type explainFlags struct {
	table   tableFlags
	packet  simulate.Question
	packets string
	seed    uint64
	output  string
	reply   bool
	rules   bool
}

func newExplainCommand() *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain --objects PATH... (--protocol P --source A[:PORT] --destination A:PORT | --packets FILE)",
		Short: "Tell what would happen to a packet, and why",
		Long: `Tell what would happen to the first packet of a flow, and why: the service, the walk
through kube-proxy's chains, every endpoint and why it was chosen or not. No root
and no kernel are needed; the objects are files.

Sources and destinations are addresses, [IPv6] in brackets where a port follows, or
names: pod/NAMESPACE/NAME[:PORT] where Pod objects are given, and
service/NAMESPACE/NAME:PORT, by its port's number or name.`,
		Example: `  nfqproxy explain --objects cluster.yaml --cluster-cidr 10.244.0.0/16 \
      --protocol tcp --source 10.244.1.9 --destination 10.96.118.136:80
  echo '{"protocol":"udp","source":"pod/default/shell","destination":"10.96.0.10:53"}' |
      nfqproxy explain --objects cluster.yaml --packets - -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), cmd.Flags().Changed("seed"))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.table.add(cmd, flags)
	flags.StringVar(&f.packet.Protocol, "protocol", "", "tcp, udp or sctp")
	flags.StringVar(&f.packet.Source, "source", "", "where the packet comes from; the port may be left out")
	flags.StringVar(&f.packet.Destination, "destination", "", "where it goes")
	flags.BoolVar(&f.packet.Local, "local", false, "it is made on the node itself")
	flags.StringVar(&f.packet.InInterface, "in-interface", "", "the interface it comes in by; only detectors by interface look at it")
	flags.StringVar(&f.packets, "packets", "", `many packets instead: JSON lines {"protocol","source","destination","local","inInterface"} from this file, - for standard input; decided in order, so that affinity holds`)
	flags.Uint64Var(&f.seed, "seed", 0, "makes the draws reproducible (default: random)")
	flags.BoolVar(&f.reply, "follow-reply", false, "also tell the way of the answer back")
	flags.BoolVar(&f.rules, "rules", false, "with the text: the rules as iptables-save prints them")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json: one object on one line for each packet")
	cmd.MarkFlagsMutuallyExclusive("packets", "protocol")
	cmd.MarkFlagsMutuallyExclusive("packets", "source")
	cmd.MarkFlagsMutuallyExclusive("packets", "destination")
	cmd.MarkFlagsOneRequired("packets", "destination")
	cmd.MarkFlagsRequiredTogether("protocol", "source", "destination")
	return cmd
}

func (f *explainFlags) run(stdin io.Reader, stdout, stderr io.Writer, seeded bool) error {
	if f.output != "text" && f.output != "json" {
		return fmt.Errorf("--output %q: want text or json", f.output)
	}
	table, objects, err := f.table.load(stderr)
	if err != nil {
		return err
	}
	seed := f.seed
	if !seeded {
		seed = rand.Uint64()
	}
	out := bufio.NewWriter(stdout)
	e := &explainer{
		simulator: simulate.New(table, rand.New(rand.NewPCG(seed, 0))),
		names:     simulate.NamesOf(table, objects.Pods),
		flags:     f, out: out, style: flow.StyleFor(stdout),
	}
	if f.packets == "" {
		err = e.explain(f.packet)
	} else {
		err = e.explainAll(f.packets, stdin)
	}
	return errors.Join(err, out.Flush())
}

// explainer answers questions one after the other.
type explainer struct {
	simulator *simulate.Simulator
	names     *simulate.Names
	flags     *explainFlags
	out       *bufio.Writer
	style     flow.Style
	answered  int
}

func (e *explainer) explain(q simulate.Question) error {
	var p decision.Packet
	p, err := e.names.Packet(q)
	if err != nil {
		return err
	}
	r := e.simulator.Decide(&p)
	if e.flags.reply {
		r.Reply = e.simulator.Reply(r)
	}
	e.answered++
	if e.flags.output == "json" {
		enc := json.NewEncoder(e.out)
		enc.SetEscapeHTML(false)
		return enc.Encode(r)
	}
	if e.answered > 1 {
		fmt.Fprintln(e.out)
	}
	_, err = e.out.WriteString(e.style.Story(r, e.flags.rules))
	return err
}

// explainAll answers one question a line. The first that is faulty ends it.
func (e *explainer) explainAll(name string, stdin io.Reader) error {
	in, what := stdin, "standard input"
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("--packets: %w", err)
		}
		defer file.Close()
		in, what = file, name
	}
	return simulate.Questions(in, func(line int, q simulate.Question, err error) error {
		if err == nil {
			err = e.explain(q)
		}
		if err != nil {
			return fmt.Errorf("%s: line %d: %w", what, line, err)
		}
		return nil
	})
}
