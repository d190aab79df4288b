package labfile

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

// Load is [manifest.Load] for files among which may be one of a lab. Its nodes and pods count
// as Nodes and Pods, and the files that it names are read, too. Package controllers adds what Services lack: ClusterIPs, node
// ports and EndpointSlices.
func Load(paths []string) (*manifest.Objects, error) {
	return manifest.Options{Extension: reading}.Load(paths)
}

// LoadOnce is Load for what is not read again: "-" is standard input, and a path may be
// that of a pipe. It reads Objects.Context, too.
func LoadOnce(stdin io.Reader, paths []string) (*manifest.Objects, error) {
	return manifest.Options{Once: true, Stdin: stdin, Context: true, Extension: reading}.Load(paths)
}

// NewSource returns a source of what Load reads.
func NewSource(paths ...string) *manifest.Source {
	return manifest.Options{Extension: reading}.NewSource(paths...)
}

// NewWrittenSource returns a source of what LoadOnce reads, without what package controllers adds: for a running lab, which has
// controllers.
func NewWrittenSource(paths ...string) *manifest.Source { return written.NewSource(paths...) }

var written = manifest.Options{Context: true, Extension: func() manifest.Extension { return &extension{written: true} }}

// Parse reads the first document of a lab file, which must be the Lab, and validates it. The error is a [manifest.Errors]; name is
// the file's name in it.
func Parse(name string, data []byte) (*Lab, error) {
	options := written
	options.First = true
	o, err := options.LoadText(name, string(data))
	if err == nil && o.Lab == nil {
		err = manifest.Errors{{File: name, Item: -1, Err: fmt.Errorf("the first document must have \"apiVersion: %s\" and \"kind: %s\"", yamlfile.APIVersion, Kind)}}
	}
	if err != nil {
		return nil, FirstDocument(name, err)
	}
	return Of(o), nil
}

// FirstDocument leaves out the number of the document in those [manifest.Errors] that are about the first one of a file: the Lab.
func FirstDocument(file string, err error) error {
	errs, ok := errors.AsType[manifest.Errors](err)
	if !ok {
		return err
	}
	var all manifest.Errors
	for _, e := range errs {
		if e.File == file && e.Document == 1 {
			c := *e
			c.Document, c.Object = 0, ""
			e = &c
		}
		all = append(all, e)
	}
	return all
}

func reading() manifest.Extension { return new(extension) }

// applied reads objects that are to be applied to a running lab.
var applied = manifest.Options{Once: true, Deployments: true, Extension: written.Extension}

// LoadApplied is LoadOnce for objects that are to be applied to a running lab: it reads Deployments, too, and its
// errors are also about what of Deployments and Pods a lab cannot have.
func LoadApplied(stdin io.Reader, paths []string) (*manifest.Objects, error) {
	o := applied
	o.Stdin = stdin
	return o.Load(paths)
}

// LoadText is LoadApplied for a text instead of files, with the name of it in errors. It reads no files, also if a Lab in
// the text names some.
func LoadText(name, text string) (*manifest.Objects, error) { return applied.LoadText(name, text) }

// Of is the lab of objects; nil: they are of none.
func Of(o *manifest.Objects) *Lab {
	l, _ := o.Lab.(*Lab)
	return l
}

// extension is the [manifest.Extension] for labs.
type extension struct {
	written bool // no objects but those that are written
	at      *manifest.Place
	lab     *Lab
}

// Read takes a Lab.
func (x *extension) Read(at manifest.Place, apiVersion, kind string, fields map[string]any) (e manifest.Extended, ok bool) {
	switch ours := yamlfile.IsAPIVersion(apiVersion); {
	case ours && kind == Kind:
	case ours && nearest.Name(kind, []string{Kind}) != "":
		return manifest.Extended{Errs: []yamlfile.FieldError{{Field: "kind", Err: fmt.Errorf("no kind %q%s", kind, nearest.Hint(kind, []string{Kind}))}}}, true
	case kind == Kind && strings.HasPrefix(apiVersion, "nfqproxy."):
		return manifest.Extended{Errs: []yamlfile.FieldError{{Field: "apiVersion", Err: fmt.Errorf("want %s, have %q", yamlfile.APIVersion, apiVersion)}}}, true
	default:
		return e, false
	}
	r := reader{lab: new(Lab)}
	if x.at != nil && *x.at != at { // a document may be read again
		r.fail("", "a second Lab: the first is in %s", *x.at)
		return manifest.Extended{Errs: r.errs}, true
	}
	x.at = &at
	r.read(at.File, fields)
	if len(r.errs) == 0 {
		r.errs = r.lab.Validate()
	}
	if len(r.errs) > 0 {
		return manifest.Extended{Errs: r.errs}, true
	}
	x.lab = r.lab
	e.Further = r.lab.Objects
	if w := r.respelled.Warning(Kind); w != "" {
		e.Warnings = []string{w}
	}
	return e, true
}

// Check is what of a Pod or a Deployment a lab cannot have.
func (*extension) Check(object any) []yamlfile.FieldError {
	var p problems
	switch o := object.(type) {
	case *corev1.Pod:
		p.podOf(o)
	case *appsv1.Deployment:
		p.deploymentOf(o)
	}
	return p.errs
}

// Complete adds the nodes and pods of the lab to the objects, and does what a control plane does.
func (x *extension) Complete(o *manifest.Objects) *manifest.Error {
	if x.lab == nil {
		return nil
	}
	o.Lab = x.lab
	x.lab.addTo(o)
	if x.written {
		return nil
	}
	failed := func(err error) *manifest.Error {
		return &manifest.Error{File: x.at.File, Document: x.at.Document, Item: x.at.Item, Object: Kind, Err: err}
	}
	if err := controllers.Allocate(o.Services, x.lab.ServicePrefixes()); err != nil {
		return failed(err)
	}
	made, err := controllers.NewEndpointSlices().Sync(o.Services, o.Pods, o.Nodes, o.EndpointSlices, time.Time{})
	if err != nil {
		return failed(err)
	}
	o.EndpointSlices = append(o.EndpointSlices, made...)
	return nil
}

// LabPods are the pods.
func (l *Lab) LabPods() []labapi.Pod { return l.Pods }

// LabClients are the clients.
func (l *Lab) LabClients() []labapi.Client { return l.Clients }

// NodePorts are the ports that a node serves on its own addresses.
func (l *Lab) NodePorts(node string) []labapi.Port {
	for i := range l.Nodes {
		if l.Nodes[i].Name == node {
			return l.Nodes[i].Ports
		}
	}
	return nil
}

// addTo adds the nodes and pods of the lab to the objects. An object of the same kind and
// name goes before, but for addresses that it lacks: a lab that was made of objects makes
// up what these lack.
func (l *Lab) addTo(o *manifest.Objects) {
	nodes := make(map[string]*corev1.Node)
	for _, n := range o.Nodes {
		nodes[n.Name] = n
	}
	for _, h := range l.Nodes {
		n, ok := nodes[h.Name]
		if !ok {
			n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name, Labels: h.Labels}}
			o.Nodes = append(o.Nodes, n)
		}
		if n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) == 0 {
			for _, c := range h.PodCIDRs {
				n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, c.String())
			}
		}
		for _, a := range h.Addresses {
			if !hasNodeAddress(n, a) {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
			}
		}
	}
	pods := make(map[string]*corev1.Pod) // by full name
	for _, p := range o.Pods {
		pods[p.Namespace+"/"+p.Name] = p
	}
	for i := range l.Pods {
		h := &l.Pods[i]
		p, ok := pods[h.FullName()]
		if !ok {
			p = PodObject(h)
			o.Pods = append(o.Pods, p)
		}
		if p.Status.PodIP == "" && len(p.Status.PodIPs) == 0 {
			setPodIPs(&p.Status, h.Addresses)
		}
	}
}

// hasNodeAddress reports whether a node has an address of the family of one.
func hasNodeAddress(n *corev1.Node, a netip.Addr) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(b corev1.NodeAddress) bool {
		if b.Type != corev1.NodeInternalIP && b.Type != corev1.NodeExternalIP {
			return false
		}
		other, err := kubeaddr.Parse(b.Address)
		return err == nil && other.Is4() == a.Is4()
	})
}
