package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// tableFlags make a service table on paper: from manifests, for a node that need not be
// this machine.
type tableFlags struct {
	objects []string
	name    string
	node    nodeFlags
}

func (f *tableFlags) add(cmd *cobra.Command, flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.objects, "objects", nil, "file or directory with Services, EndpointSlices, Nodes and Pods (YAML or JSON); may be repeated")
	flags.StringVar(&f.name, "node-name", "", "name of the node to look from (default: the Node object's, if there is just one)")
	f.node.add(flags)
	_ = cmd.MarkFlagRequired("objects")
}

// load makes the table. Warnings go to stderr.
func (f *tableFlags) load(stderr io.Writer) (*decision.Table, *manifest.Objects, error) {
	objects, err := manifest.Load(f.objects)
	if err != nil {
		return nil, nil, err
	}
	if len(objects.Services) == 0 {
		return nil, nil, noServices(f.objects, objects)
	}
	name := f.name
	if name == "" && len(objects.Nodes) == 1 {
		name = objects.Nodes[0].Name
	}
	config, err := f.node.config(name)
	if err != nil {
		return nil, nil, err
	}
	if err := config.Validate(); err != nil {
		return nil, nil, err
	}
	table, warnings := control.Table(objects, config)
	for _, w := range warnings {
		fmt.Fprintln(stderr, "nfqproxy: warning:", w)
	}
	return table, objects, nil
}

// noServices says what there is instead.
func noServices(paths []string, objects *manifest.Objects) error {
	if objects.Empty() {
		return fmt.Errorf("no Kubernetes objects in %s: give files or directories with Services and EndpointSlices, such as "+
			"kubectl get svc,endpointslices,nodes,pods -A -o yaml prints", strings.Join(paths, ", "))
	}
	var others []string
	for _, s := range objects.Skipped {
		others = append(others, fmt.Sprintf("%d %s", s.Count, s.Kind))
	}
	if len(others) == 0 {
		return errors.New("there are no Services among the objects")
	}
	return fmt.Errorf("there are no Services among the objects; skipped were %s", strings.Join(others, ", "))
}
