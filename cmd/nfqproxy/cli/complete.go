package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Completion of names: services, pods and nodes of the running lab, of the daemon or of the
// files of --objects; labs and their hosts. A lookup that takes too long completes nothing,
// because the shell waits for it.

// completionPatience is how long a completion may take.
const completionPatience = time.Second

// soon returns the result of f, or nil on a timeout.
func soon(f func(context.Context) []string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), completionPatience)
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

// nothing completes nothing, nor files.
func nothing(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// runningLabs completes the one argument that is the name of a running lab.
func runningLabs(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return soon(func(context.Context) []string { return lab.RunningLabs() }), cobra.ShellCompDirectiveNoFileComp
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

// names are the objects that flags name.
type names struct{ services, pods, nodes, hosts, namespaces []string }

// add adds a name with a namespace.
func (n *names) add(list *[]string, namespace, name string) {
	*list = append(*list, namespace+"/"+name)
	n.namespaces = append(n.namespaces, namespace)
}

// namesAt are the names that a flow API returns.
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

// namesIn are those in files.
func namesIn(paths []string) (n names, err error) {
	objects, err := labfile.Load(paths)
	if err != nil {
		return n, err
	}
	for _, s := range objects.Services {
		n.add(&n.services, s.Namespace, s.Name)
	}
	for _, p := range objects.Pods {
		n.add(&n.pods, p.Namespace, p.Name)
	}
	for _, node := range objects.Nodes {
		n.nodes = append(n.nodes, node.Name)
	}
	return n.sorted(), nil
}

func (n names) sorted() names {
	for _, list := range []*[]string{&n.services, &n.pods, &n.nodes, &n.hosts, &n.namespaces} {
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

// completeNames has the shell complete the flags of all commands that name objects.
func completeNames(root *cobra.Command, connect connector) {
	for _, cmd := range root.Commands() {
		completeNames(cmd, connect)
	}
	flags := root.Flags()
	if flags.Lookup("lab") != nil {
		completeFlag(root, "lab", func() []string { return lab.RunningLabs() })
	}
	var known func(context.Context) (names, error)
	switch {
	case flags.Lookup("server") != nil:
		known = func(ctx context.Context) (n names, err error) {
			f := serverFlags{server: flags.Lookup("server").Value.String(), lab: flags.Lookup("lab").Value.String(), tokenFile: flags.Lookup("token-file").Value.String(), kubeconfig: flags.Lookup("kubeconfig").Value.String()}
			f.daemons = daemonsFlags{cluster: flags.Lookup("cluster").Value.String() == "true", context: flags.Lookup("context").Value.String(), daemonset: flags.Lookup("daemonset").Value.String(), flags: flags}
			observer, err := f.observer(ctx, connect, nil)
			if err != nil {
				return n, err
			}
			return namesAt(ctx, observer)
		}
	case flags.Lookup("objects") != nil:
		known = func(context.Context) (names, error) {
			return namesIn(flags.Lookup("objects").Value.(pflag.SliceValue).GetSlice())
		}
	default:
		return
	}
	ends := names.ends
	if flags.Lookup("server") != nil {
		ends = names.machines
	}
	for flag, list := range map[string]func(names) []string{
		"service":   func(n names) []string { return n.services },
		"pod":       func(n names) []string { return n.pods },
		"node":      func(n names) []string { return n.nodes },
		"node-name": func(n names) []string { return n.nodes },
		"namespace": func(n names) []string { return n.namespaces },
		"source":    ends, "destination": ends, "endpoint": ends,
	} {
		// A flow API's filter for the destination is an address.
		if flags.Lookup(flag) == nil || flags.Lookup("server") != nil && flag == "destination" {
			continue
		}
		completeFlag(root, flag, func() []string {
			return soon(func(ctx context.Context) []string {
				n, err := known(ctx)
				if err != nil {
					return nil
				}
				return list(n)
			})
		})
	}
}

// completeFlag has the shell complete a flag's value, or the last one of a list.
func completeFlag(cmd *cobra.Command, flag string, values func() []string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		before := begun[:strings.LastIndexByte(begun, ',')+1]
		var all []string
		for _, v := range values() {
			all = append(all, before+v)
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	})
}
