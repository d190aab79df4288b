package cli

import (
	"fmt"
	"io"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// servicesOfObjects is how the services of a family differ from what objects ask for.
type servicesOfObjects struct {
	Family string `json:"family"`
	// NotCompared is the reason why they were not compared; empty: they were.
	NotCompared string            `json:"notCompared,omitempty"`
	Differences *audit.Comparison `json:"differences,omitempty"`
}

// compare compares the services with the objects of --objects; nil: there are none.
func (f *servicesFlags) compare(stdin io.Reader, stderr io.Writer) (list []servicesOfObjects, err error) {
	if len(f.objects) == 0 {
		return nil, nil
	}
	v := f.view
	if v.objects, err = labfile.LoadOnce(stdin, f.objects); err != nil {
		return nil, fmt.Errorf("--objects: %w", err)
	}
	if len(v.objects.Services) == 0 {
		return nil, noServices(f.objects, v.objects)
	}
	note(stderr, v.objects.Notes...)
	if v.name = f.nodeName; v.in.node != nil {
		v.name = nodeNamed(v.objects, v.in.node)
	} else if v.name == "" && len(v.objects.Nodes) == 1 {
		v.name = v.objects.Nodes[0].Name
	}
	for _, family := range v.families() {
		changes, reason, err := v.differences(family)
		if err != nil {
			return nil, err
		}
		of := servicesOfObjects{Family: family.String(), NotCompared: reason}
		if reason == "" {
			of.Differences = &audit.Comparison{Services: f.inNamespace(changes)}
		}
		list = append(list, of)
	}
	return list, nil
}

// inNamespace are the changes of the services that --namespace selects.
func (f *servicesFlags) inNamespace(changes []audit.ServiceChange) (selected []audit.ServiceChange) {
	namespace := f.namespaces.selected()
	for _, c := range changes {
		if namespace == "" || c.Service().Name.Namespace == namespace {
			selected = append(selected, c)
		}
	}
	return selected
}

// writeCompared writes the differences as diff does.
func (f *servicesFlags) writeCompared(w io.Writer) error {
	for _, of := range f.compared {
		family := ""
		if len(f.compared) > 1 {
			family = " of " + of.Family
		}
		switch {
		case of.NotCompared != "":
			fmt.Fprintf(w, "\nThe services%s were not compared with the objects: %s\n", family, of.NotCompared)
		case of.Differences.Same():
			fmt.Fprintf(w, "\nThe services%s match the objects\n", family)
		default:
			fmt.Fprintf(w, "\nThe services%s are not what the objects ask for (- missing on the node, + only on the node, ~ objects -> node):\n", family)
			if err := of.Differences.WriteServices(w); err != nil {
				return err
			}
		}
	}
	return nil
}
