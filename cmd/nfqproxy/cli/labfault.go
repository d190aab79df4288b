package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

func newLabFaultCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Break something in a running lab, and mend it",
		Example: `  nfqproxy lab fault add firewall kind-worker --to 10.244.2.2 --port 80
  nfqproxy lab fault add loss kind-worker2 --percent 20
  nfqproxy lab fault list
  nfqproxy lab fault rm 1`,
	}
	cmd.AddCommand(newLabFaultAddCommand(), newLabFaultListCommand(), newLabFaultRemoveCommand())
	group(cmd)
	return cmd
}

// faultFlags are the flags of a fault that are text.
type faultFlags struct {
	to, via, from, endpoint, protocol string
	port                              uint16
}

func newLabFaultAddCommand() *cobra.Command {
	var name string
	var fault lab.Fault
	var f faultFlags
	var kinds strings.Builder
	t := tabwriter.NewWriter(&kinds, 0, 0, 2, ' ', 0)
	for _, k := range lab.FaultKinds {
		fmt.Fprintf(t, "  %s\t%s\n", k.Name, k.What)
	}
	_ = t.Flush() // a Builder takes everything
	cmd := &cobra.Command{
		Use:   "add KIND HOST",
		Short: "Break something on a node, pod or client",
		Long:  "Break something on a node, pod or client of a running lab, until \"fault rm\" or the lab's end:\n\n" + strings.TrimRight(kinds.String(), "\n"),
		Args:  exactly(2, "a kind and a host"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return lab.FaultKindNames(), cobra.ShellCompDirectiveNoFileComp
			}
			return labHosts(&name)(cmd, args[1:], word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			fault.Kind, fault.Host = args[0], args[1]
			if err := f.read(&fault); err != nil {
				return err
			}
			added, err := lab.AddFaultOf(name, fault)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "fault %d: %s\n", added.ID, &added)
			return err
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&fault.Delay, "delay", 0, "delay: how late packets are")
	flags.DurationVar(&fault.Jitter, "jitter", 0, "delay: a random time more, up to this")
	flags.Float64Var(&fault.Percent, "percent", 0, "loss: the share of packets, in percent")
	flags.StringVar(&f.to, "to", "", "firewall, route: address or CIDR; stale-entry: the address of a Service")
	flags.Uint16Var(&f.port, "port", 0, "firewall, stale-entry: the destination port")
	flags.StringVar(&f.protocol, "protocol", "tcp", "firewall with --port: tcp, udp or sctp")
	flags.BoolVar(&fault.Reject, "reject", false, "firewall: reject packets instead of dropping them")
	flags.StringVar(&f.via, "via", "", "route: the next hop (default: packets are dropped)")
	flags.StringVar(&f.from, "from", "", "stale-entry: ADDRESS:PORT of the client")
	flags.StringVar(&f.endpoint, "endpoint", "", "stale-entry: ADDRESS:PORT that the entry leads to")
	flags.Uint32Var(&fault.Connections, "connections", 0, "full-table: how many connections the table takes")
	complete(cmd, "protocol", []string{"tcp", "udp", "sctp"})
	labFlag(cmd, &name)
	return cmd
}

// read takes the flags that are text.
func (f *faultFlags) read(fault *lab.Fault) (err error) {
	if f.to != "" {
		if fault.To, err = addressOrCIDR(f.to); err != nil {
			return fmt.Errorf("--to %q: %w", f.to, err)
		}
	}
	if f.via != "" {
		if fault.Via, err = kubeaddr.Parse(f.via); err != nil {
			return fmt.Errorf("--via %q: %w", f.via, err)
		}
	}
	for _, e := range []struct {
		flag, text string
		into       *netip.AddrPort
	}{{"--from", f.from, &fault.From}, {"--endpoint", f.endpoint, &fault.Endpoint}} {
		if e.text == "" {
			continue
		}
		if *e.into, err = netip.ParseAddrPort(e.text); err != nil {
			return fmt.Errorf("%s %q: want ADDRESS:PORT", e.flag, e.text)
		}
	}
	fault.Port = f.port
	switch {
	case fault.Kind == "stale-entry":
		fault.Protocol = decision.UDP
	case f.port != 0:
		if fault.Protocol, err = decision.ParseProtocol(f.protocol); err != nil {
			return fmt.Errorf("--protocol %q: want tcp, udp or sctp", f.protocol)
		}
	}
	return nil
}

func addressOrCIDR(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return kubeaddr.ParsePrefix(text)
	}
	a, err := kubeaddr.Parse(text)
	return netip.PrefixFrom(a, a.BitLen()), err
}

func newLabFaultListCommand() *cobra.Command {
	var name, output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the faults of a running lab",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: want text or json", output)
			}
			faults, err := lab.FaultsOf(name)
			if err != nil {
				return err
			}
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(append([]lab.Fault{}, faults...))
			}
			return writeFaults(cmd.OutOrStdout(), faults)
		},
	}
	labFlag(cmd, &name)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	complete(cmd, "output", []string{"text", "json"})
	return cmd
}

func writeFaults(w io.Writer, faults []lab.Fault) error {
	for _, f := range faults {
		if _, err := fmt.Fprintf(w, "%d  %s\n", f.ID, &f); err != nil {
			return err
		}
	}
	if len(faults) == 0 {
		_, err := fmt.Fprintln(w, "no faults")
		return err
	}
	return nil
}

func newLabFaultRemoveCommand() *cobra.Command {
	var name string
	var all bool
	cmd := &cobra.Command{
		Use:   "rm NUMBER | --all",
		Short: "Mend a fault",
		Args:  atMost(1, "a fault's number"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := 0
			switch {
			case all == (len(args) == 1):
				return fmt.Errorf("give a fault's number or --all")
			case !all:
				n, err := strconv.Atoi(args[0])
				if err != nil || n < 1 {
					return fmt.Errorf("%q: want a fault's number (nfqproxy lab fault list)", args[0])
				}
				id = n
			}
			ended, err := lab.RemoveFaultOf(name, id)
			if err != nil {
				return err
			}
			for _, f := range ended {
				cmd.Printf("fault %d is over: %s\n", f.ID, &f)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all faults")
	labFlag(cmd, &name)
	return cmd
}
