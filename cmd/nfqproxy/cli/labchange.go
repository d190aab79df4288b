package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// changeLab changes a running lab and prints what has changed.
func changeLab(w io.Writer, name string, c lab.Change) error {
	changes, err := lab.ChangeOf(name, c)
	if err != nil {
		return err
	}
	for _, line := range changes {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

func newLabScaleCommand() *cobra.Command {
	var name, namespace string
	cmd := &cobra.Command{
		Use:     "scale DEPLOYMENT REPLICAS",
		Short:   "Change the number of pods of a deployment in a running lab",
		Example: `  nfqproxy lab scale shop/web 5`,
		Args:    exactly(2, "a deployment and a number"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || n > labapi.MaxReplicas {
				return fmt.Errorf("%q: want a number of replicas from 0 to %d", args[1], labapi.MaxReplicas)
			}
			return changeLab(cmd.OutOrStdout(), name, lab.Change{Scale: &lab.Scale{Deployment: inNamespace(namespace, args[0]), Replicas: uint16(n)}})
		},
	}
	objectNamespaceFlag(cmd, &namespace)
	labFlag(cmd, &name)
	return cmd
}

func newLabPodCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pod",
		Short: "Add and remove pods of a running lab, make them not ready, or stop their servers",
		Example: `  nfqproxy lab pod add shop/web-9 --labels app=web --port 80
  nfqproxy lab pod unready shop/web-9
  nfqproxy lab pod rm shop/web-9 --grace 0s`,
	}
	cmd.AddCommand(newLabPodAddCommand(), newLabPodRemoveCommand(),
		newLabPodChangeCommand("unready", "Make a pod not ready, whatever its readiness probe finds", readiness(false)),
		newLabPodChangeCommand("ready", "Make a pod ready again, if its readiness probe succeeds", readiness(true)),
		newLabPodChangeCommand("stop", "Stop the built-in server of a pod: it refuses connections", serving(false)),
		newLabPodChangeCommand("start", "Start the built-in server of a pod again", serving(true)))
	group(cmd)
	return cmd
}

func newLabPodAddCommand() *cobra.Command {
	var name, namespace, node string
	var labels map[string]string
	var addresses, ports []string
	cmd := &cobra.Command{
		Use:   "add [NAMESPACE/]NAME",
		Short: "Add a pod with a built-in server",
		Args:  exactly(1, "a pod's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, pod, _ := strings.Cut(inNamespace(cmp.Or(namespace, "default"), args[0]), "/")
			p := lab.Pod{Name: pod, Namespace: namespace, Node: node, Labels: labels}
			for _, a := range addresses {
				address, err := kubeaddr.Parse(a)
				if err != nil {
					return fmt.Errorf("--address %q: %w", a, err)
				}
				p.Addresses = append(p.Addresses, address)
			}
			for _, text := range ports {
				port, err := parseLabPort(text)
				if err != nil {
					return fmt.Errorf("--port %q: %w", text, err)
				}
				p.Ports = append(p.Ports, port)
			}
			return changeLab(cmd.OutOrStdout(), name, lab.Change{AddPod: &p})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&node, "node", "", "the pod's node (default: the first one that takes pods)")
	flags.StringToStringVar(&labels, "labels", nil, "labels of the pod, for the selectors of Services: KEY=VALUE, separated by commas")
	flags.StringSliceVar(&ports, "port", nil, "port that the server listens on: PORT or PORT/udp; may be repeated")
	flags.StringSliceVar(&addresses, "address", nil, "address of the pod (default: a free one of its node)")
	objectNamespaceFlag(cmd, &namespace)
	labFlag(cmd, &name)
	return cmd
}

func parseLabPort(text string) (p lab.Port, err error) {
	number, protocol, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return p, errors.New("want PORT, PORT/tcp or PORT/udp with a port from 1 to 65535")
	}
	p.Port = uint16(n)
	p.Protocol, err = decision.ParseProtocol(cmp.Or(protocol, "tcp"))
	if err == nil && p.Protocol == decision.SCTP {
		err = errors.New("the built-in server supports TCP and UDP")
	}
	return p, err
}

func newLabPodRemoveCommand() *cobra.Command {
	var name, namespace string
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "rm POD",
		Short: "Remove a pod: it terminates, and keeps serving for its grace period",
		Args:  exactly(1, "a pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := lab.RemovePod{Pod: inNamespace(namespace, args[0])}
			if cmd.Flags().Changed("grace") {
				if grace < 0 || grace > labapi.MaxGrace {
					return fmt.Errorf("--grace %s: want from 0s to 1h", grace)
				}
				c.Grace = new(labapi.Duration(grace))
			}
			return changeLab(cmd.OutOrStdout(), name, lab.Change{RemovePod: &c})
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", 0, "how long the pod keeps serving (default: its gracePeriodSeconds, or 2s)")
	objectNamespaceFlag(cmd, &namespace)
	labFlag(cmd, &name)
	return cmd
}

func readiness(ready bool) func(pod string) lab.Change {
	return func(pod string) lab.Change { return lab.Change{Ready: &lab.Readiness{Pod: pod, Ready: ready}} }
}

func serving(running bool) func(pod string) lab.Change {
	return func(pod string) lab.Change { return lab.Change{Server: &lab.Serving{Pod: pod, Running: running}} }
}

func newLabPodChangeCommand(use, short string, change func(pod string) lab.Change) *cobra.Command {
	var name, namespace string
	cmd := &cobra.Command{
		Use:   use + " POD",
		Short: short,
		Args:  exactly(1, "a pod"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeLab(cmd.OutOrStdout(), name, change(inNamespace(namespace, args[0])))
		},
	}
	objectNamespaceFlag(cmd, &namespace)
	labFlag(cmd, &name)
	return cmd
}

func newLabNodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Disconnect or drain nodes of a running lab",
		Example: `  nfqproxy lab node drain kind-worker
  nfqproxy lab node down kind-worker2`,
	}
	for _, c := range []struct{ action, short string }{
		{"down", "Take the node's link down: its pods become not ready"},
		{"up", "Bring the node's link up again"},
		{"drain", "Move the pods of deployments to other nodes, and place no new ones"},
		{"uncordon", "Place new pods on the node again"},
	} {
		cmd.AddCommand(newLabNodeEventCommand(c.action, c.short))
	}
	group(cmd)
	return cmd
}

func newLabNodeEventCommand(action, short string) *cobra.Command {
	var name string
	var force bool
	cmd := &cobra.Command{
		Use:   action + " NODE",
		Short: short,
		Args:  exactly(1, "a node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeLab(cmd.OutOrStdout(), name, lab.Change{Node: &lab.NodeEvent{Node: args[0], Action: action, Force: force}})
		},
	}
	if action == "drain" {
		cmd.Flags().BoolVar(&force, "force", false, "also remove pods that belong to no deployment")
	}
	labFlag(cmd, &name)
	return cmd
}
