package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/objecttext"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// objectsFlags are the flags of nfqproxy objects.
type objectsFlags struct {
	server     serverFlags
	node       string
	namespace  string
	generation uint64
	output     string
}

func newObjectsCommand(connect connector) *cobra.Command {
	var f objectsFlags
	cmd := &cobra.Command{
		Use:   "objects [SERVICE]",
		Short: "Print a daemon's current or an earlier service table as Kubernetes objects",
		Long: `Print the service table of a node's daemon as Kubernetes objects: the Services, their
EndpointSlices and the Node. With --generation, print an earlier table: each change makes
a new generation, flows carry its number, and "nfqproxy timeline" lists them. The daemon
keeps the newest 1,024.

Commands that take --objects build the same table from these objects, if they also get the
node's flags, such as --cluster-cidr. The objects contain only what a table depends on: no
selectors, and "elsewhere" as the zone or node of endpoints meant for others.

SERVICE is NAMESPACE/NAME, or NAME in --namespace. Without it the command prints all.`,
		Example: `  nfqproxy objects > now.yaml
  nfqproxy objects --generation 12 --node node-a > then.yaml
  nfqproxy replay flows.jsonl --balance lc --objects then.yaml --cluster-cidr 10.244.0.0/16`,
		Args:        atMost(1, "SERVICE"),
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return unlessClosed(cmd.Context(), blameFlag(cmd.Flags(), f.run(cmd, connect, args)))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Uint64Var(&f.generation, "generation", 0, "generation of the service table (default: the current one)")
	flags.StringVar(&f.node, "node", "", "print the table of this node (required if the flow API has several nodes)")
	serviceNamespaceFlag(cmd, &f.namespace)
	oneOf(cmd, &f.output, "output", "o", ", as nfqproxy lab get prints objects", "yaml", "json", "name", "text")
	f.server.add(cmd)
	return cmd
}

func (f *objectsFlags) run(cmd *cobra.Command, connect connector, args []string) error {
	q := observe.ObjectsQuery{Node: f.node}
	if cmd.Flags().Changed("generation") {
		q.Generation = strconv.FormatUint(f.generation, 10)
	}
	if len(args) > 0 {
		q.Service = f.server.serviceName(f.namespace, args[0])
	}
	if _, _, err := q.Parse(); err != nil {
		return err
	}
	observer, err := f.server.observer(cmd.Context(), connect, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	o, err := observer.Objects(cmd.Context(), q)
	if err != nil {
		return err
	}
	if f.output != "yaml" {
		objects, err := labfile.LoadText("the service table", o.YAML)
		if err != nil {
			return err
		}
		selected, err := objecttext.Select(objects, objecttext.Selection{})
		if err != nil {
			return err
		}
		return objecttext.Write(cmd.OutOrStdout(), selected, f.output, false)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "# Service table of node %s, generation %d, built %s\n%s", o.Node, o.Generation, o.Built.Format(time.RFC3339Nano), o.YAML)
	return err
}
