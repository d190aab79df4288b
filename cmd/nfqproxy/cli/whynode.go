package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/paper/savednode"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// askBundle answers with the bundle of a node, and with objects if flags name some.
func (f *whyFlags) askBundle(ctx context.Context, path string, stdin io.Reader, stderr io.Writer) (*diagnose.Answer, error) {
	if f.lab != "" || f.server != "" || f.daemons.flags.Changed("cluster") {
		return nil, fmt.Errorf("--node %s, which is a bundle, cannot be used with --lab, --server and --cluster: give one of them", path)
	}
	node, err := savednode.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--node: %w", err)
	}
	f.table.name = "" // its name among the objects is not known yet
	var objects *manifest.Objects
	if f.namesObjects() {
		if objects, err = f.read(ctx, stdin, stderr); err != nil {
			return nil, err
		}
		note(stderr, objects.Notes...)
		note(stderr, objects.Made.Note(func(*manifest.MadeItem) bool { return true }))
	}
	v, err := inputOf(node).view(stderr, new(nodeFiles), objects, "")
	if err != nil {
		return nil, err
	}
	config, err := f.configure(v)
	if err != nil {
		return nil, err
	}
	if objects != nil {
		if err := v.replaceDaemon(func(string) (servicetable.NodeConfig, error) { return config, nil }); err != nil {
			return nil, err
		}
	}
	if f.question.Node = v.name; f.question.Namespace == "" && objects != nil {
		f.question.Namespace = f.namespace()
	}
	cluster := diagnose.New(v.objects, config)
	answer, err := cluster.Why(f.question)
	if err != nil {
		if objects == nil {
			err = fmt.Errorf("%w (%s is a bundle of rules, which have no Pods and no other names: give the objects with --objects or --kubeconfig)", err, path)
		}
		return nil, err
	}
	return answer, f.see(answer, v, cluster, objects == nil, stderr)
}

// configure is the configuration of the node. Without objects, those that its rules show become the view's.
func (f *whyFlags) configure(v *nodeView) (servicetable.NodeConfig, error) {
	host, _, err := v.host(iptables.IPv4)
	if err != nil {
		return servicetable.NodeConfig{}, err
	}
	nodes := v.services()
	if v.objects != nil {
		if len(v.objects.Nodes) == 0 {
			v.objects.Nodes = diagnose.ObjectsOf(v.name, nodes, host).Nodes
		}
		f.table.name = v.name
		host, _, err := v.host(iptables.IPv4)
		if err != nil {
			return servicetable.NodeConfig{}, err
		}
		diagnose.AddAddresses(v.objects, v.name, host)
		return f.table.configure(v.objects)
	}
	if len(nodes) == 0 {
		why := v.in.why()
		if why == "" {
			for _, d := range v.dumps {
				if text := audit.Read(d).OtherMode(); text != "" {
					why = ": " + text
				}
			}
		}
		return servicetable.NodeConfig{}, fmt.Errorf("--node %s: the bundle shows no Services%s: give the objects with --objects or --kubeconfig", v.in.node.Path, why)
	}
	v.objects = diagnose.ObjectsOf(v.name, nodes, host)
	return audit.Config(v.name, nodes...), nil
}

// see adds to an answer what the node does. alone: there are no other objects than those of its rules.
func (f *whyFlags) see(answer *diagnose.Answer, v *nodeView, cluster *diagnose.Cluster, alone bool, stderr io.Writer) error {
	family := answer.Family()
	if family == iptables.FamilyUnknown {
		return nil
	}
	var dumps []*iptables.Dump
	var err error
	if len(v.dumps) > 0 {
		if dumps, err = v.of(family); err != nil {
			return err
		}
	}
	known, notes, err := v.known(family, dumps)
	if err != nil {
		return err
	}
	note(stderr, notes...)
	if alone {
		known.Services = nil // its names are made up
	}
	saved := &diagnose.Saved{Node: v.name, Dumps: dumps, Known: known, Alone: alone, Daemon: v.daemon}
	if !alone {
		if saved.Differences, _, err = v.differences(family); err != nil {
			return err
		}
	}
	if err := answer.See(saved); err != nil {
		return fmt.Errorf("--node %s: %w", v.in.node.Path, err)
	}
	entries, _, err := v.in.node.Entries()
	if err != nil {
		return fmt.Errorf("--node: %w", err)
	}
	if !alone && answer.Node == v.name {
		answer.AboutEntries(cluster.ConnectionEntries(entries))
	}
	if count, limit, ok := v.in.node.Connections(); ok && answer.Node == v.name {
		if full := diagnose.FullTable(v.name, count, limit); full != nil {
			answer.Notes = append(answer.Notes, *full)
			if count >= limit {
				answer.Unless = cmp.Or(answer.Unless, "the connection table of "+v.name+", which is full, has no room for it")
			}
			answer.Settle()
		}
	}
	if answer.Node == v.name {
		for _, l := range v.trackingLosses(answer.Notes) {
			if l.Code != diagnose.SameTuple || answer.Record != nil && answer.Record.Protocol == decision.UDP.String() {
				answer.Notes = append(answer.Notes, l)
			}
		}
	}
	return nil
}
