package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/clusterobjects"
	"github.com/nfqproxy/nfqproxy/control/view/daemonset"
	"github.com/nfqproxy/nfqproxy/control/view/otlp"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Completion of names: of flags by their names, and of arguments by the words of the usage line. The names are those of
// the files of --objects, of the API server, of the daemon or of the running lab. A lookup that takes too long completes
// nothing, because the shell waits for it.

// completionTimeout is how long a completion may take. Tests, which may run on a busy machine, have more time.
var completionTimeout = time.Second

// soon returns the result of f, or nil on a timeout.
func soon(f func(context.Context) []string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	c := make(chan []string, 1)
	go func() { c <- f(ctx) }()
	select {
	case names := <-c:
		return names
	case <-ctx.Done():
		return nil
	}
}

// nothing completes neither words nor files.
func nothing(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// labHosts completes the first argument with the hosts of a running lab; the rest is a command.
func labHosts(name *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return soon(func(context.Context) []string {
			s, err := lab.StatusOf(*name)
			if err != nil {
				return nil
			}
			return s.Hosts()
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// names are the objects that flags and arguments name.
type names struct{ services, pods, deployments, nodes, hosts, namespaces []string }

// add adds a name with a namespace.
func (n *names) add(list *[]string, namespace, name string) {
	*list = append(*list, namespace+"/"+name)
	n.namespaces = append(n.namespaces, namespace)
}

// namesAt returns the names that a flow API knows.
func namesAt(ctx context.Context, observer observe.Observer) (n names, err error) {
	services, err := observer.Services(ctx, observe.ServiceQuery{})
	if err != nil {
		return n, err
	}
	for i := range services.Services {
		s := &services.Services[i]
		n.add(&n.services, s.Namespace, s.Name)
	}
	topology, err := observer.Topology(ctx)
	if err != nil {
		return n, err
	}
	for _, p := range topology.Pods {
		if namespace, name, ok := strings.Cut(p.Name, "/"); ok {
			n.add(&n.pods, namespace, name)
		}
	}
	for _, node := range topology.Nodes {
		n.nodes = append(n.nodes, node.Name)
	}
	for _, host := range topology.Hosts {
		n.hosts = append(n.hosts, host.Name)
	}
	return n.sorted(), nil
}

// namesOf returns the names of objects.
func namesOf(objects *manifest.Objects) (n names) {
	for _, s := range objects.Services {
		n.add(&n.services, s.Namespace, s.Name)
	}
	for _, p := range objects.Pods {
		n.add(&n.pods, p.Namespace, p.Name)
	}
	for _, d := range objects.Deployments {
		n.add(&n.deployments, d.Namespace, d.Name)
	}
	for _, node := range objects.Nodes {
		n.nodes = append(n.nodes, node.Name)
	}
	return n.sorted()
}

func (n names) sorted() names {
	for _, list := range []*[]string{&n.services, &n.pods, &n.deployments, &n.nodes, &n.hosts, &n.namespaces} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return n
}

// ends are what --source or --destination of explain can be.
func (n names) ends() (all []string) {
	for _, s := range n.services {
		all = append(all, "service/"+s)
	}
	for _, p := range n.pods {
		all = append(all, "pod/"+p)
	}
	return all
}

// machines are what --source or --endpoint of a flow API's filters can name.
func (n names) machines() []string { return slices.Concat(n.pods, n.nodes, n.hosts) }

// namedBy are the names that a flag, or a word of the usage line, stands for.
var namedBy = map[string]func(names) []string{
	"service": func(n names) []string { return n.services }, "SERVICE": func(n names) []string { return n.services },
	"pod": func(n names) []string { return n.pods }, "POD": func(n names) []string { return n.pods },
	"node": func(n names) []string { return n.nodes }, "NODE": func(n names) []string { return n.nodes },
	"DEPLOYMENT": func(n names) []string { return n.deployments },
	"namespace":  func(n names) []string { return n.namespaces },
	"source":     names.machines, "endpoint": names.machines,
	"SOURCE":      func(n names) []string { return append(n.machines(), "outside") },
	"DESTINATION": func(n names) []string { return append(n.services, n.nodes...) },
}

// valuesOf are the values of flags and arguments that do not depend on a cluster.
var valuesOf = map[string]func(*cobra.Command) []string{
	"lab":       func(*cobra.Command) []string { return lab.RunningLabs() },
	"LAB":       func(*cobra.Command) []string { return lab.RunningLabs() },
	"balance":   algorithmNames,
	"shadow":    algorithmNames,
	"ALGORITHM": algorithmNames,
	"HOST": func(*cobra.Command) []string {
		s, err := lab.StatusOf("learn") // of the course that is running
		if err != nil {
			return nil
		}
		return s.Hosts()
	},
	"unit": unitNames, "UNIT": unitNames,
	"NUMBER":   faultNumbers,
	"context":  contexts,
	"ignore":   func(*cobra.Command) []string { return findingCodes() },
	"protocol": func(*cobra.Command) []string { return []string{"tcp", "udp", "sctp"} },
	"verdict":  func(*cobra.Command) []string { return verdicts },
	"reason":   func(*cobra.Command) []string { return reasons },
	"state":    func(*cobra.Command) []string { return states },
	"event":    func(*cobra.Command) []string { return events },
	"detect-local-mode": func(*cobra.Command) []string {
		return []string{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}
	},
	"scope":           func(*cobra.Command) []string { return []string{"all", "services"} },
	"decide":          func(*cobra.Command) []string { return []string{"queue", "kernel"} },
	"host-masquerade": func(*cobra.Command) []string { return []string{"auto", "off"} },
	"when-served":     func(*cobra.Command) []string { return []string{"fail", "wait", "replace"} },
	"otlp-signals":    func(*cobra.Command) []string { return otlp.Signals() },
}

// faultNumbers are the numbers of a running lab's faults, with their descriptions.
func faultNumbers(cmd *cobra.Command) (all []string) {
	faults, _ := lab.FaultsOf(cmd.Flags().Lookup("lab").Value.String()) // none: nothing is completed
	for _, f := range faults {
		all = append(all, fmt.Sprintf("%d\t%s", f.ID, f.Text))
	}
	return all
}

// contexts lists the contexts of the kubeconfig.
func contexts(cmd *cobra.Command) []string {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cmd.Flags().Lookup("kubeconfig").Value.String()
	config, err := rules.Load()
	if err != nil {
		return nil // nothing is completed
	}
	return slices.Sorted(maps.Keys(config.Contexts))
}

// algorithmNames are the balancing algorithms.
func algorithmNames(*cobra.Command) (all []string) {
	for _, e := range balance.NewRegistry().Entries() {
		all = append(all, e.Name)
	}
	return all
}

// findingCodes lists the codes of doctor's findings.
func findingCodes() (all []string) {
	for _, code := range diagnose.Codes() {
		all = append(all, string(code))
	}
	return all
}

// unitNames are the units of the course that --units selects, with their titles.
func unitNames(cmd *cobra.Command) (all []string) {
	f := learnFlags{}
	if units := cmd.Flags().Lookup("units"); units != nil {
		f.units = units.Value.String()
	}
	c, err := f.load(0)
	if err != nil {
		return nil
	}
	for _, u := range c.Units() {
		all = append(all, u.ID+"\t"+u.Title)
	}
	return all
}

// completion finds the names for a command.
type completion struct {
	cmd     *cobra.Command
	connect connector
}

// flag is the value of a flag; empty: the command has no such flag.
func (c completion) flag(name string) string {
	if f := c.cmd.Flags().Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// observer connects to the flow API that the flags select.
func (c completion) observer(ctx context.Context) (observe.Observer, error) {
	f := serverFlags{server: c.flag("server"), lab: c.flag("lab"), tokenFile: c.flag("token-file"), kubeconfig: c.flag("kubeconfig")}
	if c.cmd.Flags().Lookup("cluster") != nil {
		f.daemons = daemonsFlags{cluster: c.flag("cluster") == "true", context: c.flag("context"), daemonset: c.flag("daemonset"), flags: c.cmd.Flags()}
	}
	return f.observer(ctx, c.connect, nil)
}

// names returns the names of the objects that the flags select, or that the flow API knows.
func (c completion) names(ctx context.Context) (names, error) {
	flags := c.cmd.Flags()
	if f := flags.Lookup("objects"); f != nil {
		if paths := f.Value.(pflag.SliceValue).GetSlice(); len(paths) > 0 {
			objects, err := labfile.Load(paths)
			if err != nil {
				return names{}, err
			}
			return namesOf(objects), nil
		}
	}
	ofObjects := flags.Lookup("objects") != nil || flags.Lookup("server") == nil
	switch {
	case !ofObjects || c.flag("server") != "":
		observer, err := c.observer(ctx)
		if err != nil {
			return names{}, err
		}
		return namesAt(ctx, observer)
	case flags.Lookup("kubeconfig") != nil && (c.flag("kubeconfig")+c.flag("context") != "" || flags.Lookup("lab") == nil):
		config, err := connectionTo(c.flag("kubeconfig"), c.flag("context")).REST()
		if err != nil {
			return names{}, err
		}
		o, err := clusterobjects.List(ctx, config)
		if err != nil {
			return names{}, err
		}
		return namesOf(&manifest.Objects{Objects: *o}), nil
	case flags.Lookup("lab") == nil:
		return names{}, errors.New("no source of names")
	}
	o, err := lab.ObjectsOf(c.flag("lab"))
	if err != nil {
		return names{}, err
	}
	return namesOf(o), nil
}

// of are the values of a flag, or of an argument by its word in the usage line; ok: there may be any.
func (c completion) of(name string) (values func(context.Context) []string, ok bool) {
	if f := valuesOf[name]; f != nil {
		return func(context.Context) []string { return f(c.cmd) }, true
	}
	switch name {
	case "ID":
		return c.flowIDs, true
	case "daemonset":
		return c.daemonSets, true
	}
	list := namedBy[name]
	filters := c.cmd.Flags().Lookup("server") != nil && c.cmd.Flags().Lookup("objects") == nil
	switch {
	case !filters && (name == "source" || name == "destination"):
		list = names.ends
	case list == nil:
		return nil, false
	}
	return func(ctx context.Context) []string {
		n, err := c.names(ctx)
		if err != nil {
			return nil
		}
		return list(n)
	}, true
}

// daemonSets lists the DaemonSets of the cluster.
func (c completion) daemonSets(ctx context.Context) []string {
	config, err := connectionTo(c.flag("kubeconfig"), c.flag("context")).REST()
	if err != nil {
		return nil
	}
	all, _ := daemonset.Names(ctx, config) // none: nothing is completed
	return all
}

// flowIDs lists the IDs of the newest flows, with their services.
func (c completion) flowIDs(ctx context.Context) (all []string) {
	observer, err := c.observer(ctx)
	if err != nil {
		return nil
	}
	_ = observer.Flows(ctx, observe.FlowQuery{Limit: "50"}, func(item observe.Item) error {
		if r := item.Record; r != nil {
			all = append(all, strings.TrimSuffix(r.ID+"\t"+r.Service, "\t"))
		}
		return nil
	})
	return all
}

// argument is a word of a usage line that stands for an argument: POD of "rm POD", ID of "flows [ID]".
var argument = regexp.MustCompile(`[A-Z]{2,}`)

// completeNames has the shell complete the flags and arguments of all commands, where they do not do it themselves.
func completeNames(root *cobra.Command, connect connector) {
	for _, cmd := range root.Commands() {
		completeNames(cmd, connect)
	}
	c := completion{root, connect}
	root.Flags().VisitAll(func(f *pflag.Flag) {
		values, ok := c.of(f.Name)
		if !ok {
			return
		}
		_ = root.RegisterFlagCompletionFunc(f.Name, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			before := begun[:strings.LastIndexByte(begun, ',')+1] // of a list
			all := soon(values)
			for i := range all {
				all[i] = before + all[i]
			}
			return all, cobra.ShellCompDirectiveNoFileComp
		})
	})
	if root.ValidArgsFunction != nil {
		return
	}
	line, _, _ := strings.Cut(root.Use, "--")
	words := argument.FindAllString(line, -1)
	root.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		i := len(args)
		if strings.Contains(line, "...") {
			i = min(i, len(words)-1)
		}
		switch {
		case i >= len(words) || i < 0:
			return nil, cobra.ShellCompDirectiveNoFileComp
		case slices.Contains([]string{"FILE", "DIR", "DIRECTORY", "BUNDLE", "BEFORE", "AFTER"}, words[i]):
			return nil, cobra.ShellCompDirectiveDefault
		}
		values, ok := c.of(words[i])
		if !ok {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return soon(values), cobra.ShellCompDirectiveNoFileComp
	}
}
