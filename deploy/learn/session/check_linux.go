package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/jsonpath"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// check evaluates a check, and returns why it is not met. Flows count since a time.
func (w *work) check(ctx context.Context, c *learn.Check, since time.Time) (met bool, detail string) {
	var err error
	switch {
	case c.Flow != nil:
		met, detail, err = w.checkFlow(ctx, c.Flow, since)
	case c.Request != nil:
		met, detail, err = w.checkRequest(ctx, c.Request)
	case c.Entry != nil:
		met, err = w.checkEntry(c.Entry)
	case c.Rule != nil:
		met, err = w.checkRule(ctx, c.Rule)
	case c.Route != nil:
		met, detail, err = w.checkRoute(ctx, c.Route)
	case c.Object != nil:
		met, detail, err = w.checkObject(c.Object)
	case c.Run != nil:
		met, detail, err = w.checkRun(ctx, c.Run)
	}
	if err != nil {
		return false, err.Error()
	}
	if c.Not {
		return !met, ""
	}
	if met {
		detail = ""
	}
	return met, detail
}

func (w *work) checkFlow(ctx context.Context, c *learn.FlowCheck, since time.Time) (met bool, detail string, _ error) {
	q := c.Query()
	q.Since = since.UTC().Format(time.RFC3339Nano)
	n := 0
	err := w.lab.Observer.Flows(ctx, q, func(i observe.Item) error {
		if r := i.Record; r != nil && matches(c, r) {
			n++
		}
		return nil
	})
	want := max(c.Count, 1)
	if n > 0 && n < want {
		detail = fmt.Sprintf("%d of %d so far", n, want)
	}
	return n >= want, detail, err
}

// matches compares what the flow API has no parameters for.
func matches(c *learn.FlowCheck, r *flow.Record) bool {
	return (c.Entry == "" || c.Entry == r.Entry) && (c.MasqueradeReason == "" || c.MasqueradeReason == r.MasqueradeReason) &&
		(c.Masquerade == nil || *c.Masquerade == r.Masquerade) && (c.State != learn.AnsweredState || r.Life != nil && r.Life.Answered)
}

func (w *work) checkRequest(ctx context.Context, c *learn.RequestCheck) (met bool, detail string, _ error) {
	client := c.Client
	if client != "" {
		if _, err := netip.ParseAddr(client); err != nil {
			if client, err = w.lab.Spec().Resolve(client); err != nil {
				return false, "", err
			}
		}
	}
	by := make(map[string]bool)
	for _, name := range c.By {
		full, err := w.lab.Spec().Resolve(name)
		if err != nil {
			return false, "", err
		}
		by[full] = true
	}
	for range max(c.Count, 1) {
		one, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, defaultTimeout))
		r, err := w.lab.Request(one, labapi.Request{From: c.From, To: c.To, Protocol: c.Protocol})
		cancel()
		if err != nil {
			return false, "", err
		}
		if detail := w.wrong(c, r, by, client); detail != "" {
			return false, detail, nil
		}
	}
	return true, "", nil
}

// defaultTimeout is that of a check's request.
const defaultTimeout = 2 * time.Second

// wrong is what of a response is not as wanted; empty: all is.
func (w *work) wrong(c *learn.RequestCheck, r *labapi.Response, by map[string]bool, client string) string {
	switch {
	case c.Error != "" && r.Error == "":
		return "it was answered by " + r.By
	case c.Error != "" && !strings.Contains(r.Error, c.Error):
		return "its error was: " + r.Error
	case c.Error != "":
		return ""
	case r.Error != "":
		return "it failed: " + r.Error
	case len(by) > 0 && !by[r.By]:
		return "it was answered by " + r.By
	}
	seen, err := netip.ParseAddrPort(r.Client)
	if client == "" || err != nil && r.Client == client {
		return ""
	}
	if want, err := netip.ParseAddr(client); err == nil && seen.Addr().Unmap() == want || w.hasAddress(client, seen.Addr().Unmap()) {
		return ""
	}
	return "the server saw the client address " + r.Client
}

// hasAddress reports whether a host of the lab has an address.
func (w *work) hasAddress(host string, a netip.Addr) bool {
	spec := w.lab.Spec()
	for _, n := range spec.Nodes {
		if n.Name == host {
			// Its gateway address is the first one of each prefix of pods.
			return slices.Contains(n.Addresses, a) || slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Next() == a })
		}
	}
	for i := range spec.Pods {
		if spec.Pods[i].FullName() == host {
			return slices.Contains(spec.Pods[i].Addresses, a)
		}
	}
	for _, c := range spec.Clients {
		if c.Name == host {
			return slices.Contains(c.Addresses, a)
		}
	}
	return false
}

func (w *work) checkEntry(c *learn.EntryCheck) (met bool, _ error) {
	ns, err := w.lab.Namespace(c.On)
	if err != nil {
		return false, err
	}
	protocol := uint8(0)
	switch c.Protocol {
	case "":
	case "icmp":
		protocol = unix.IPPROTO_ICMP
	default:
		p, err := decision.ParseProtocol(c.Protocol)
		if err != nil {
			return false, err
		}
		protocol = uint8(p)
	}
	err = ns.Do(func() error {
		table, err := conntrack.Open(new(conntrack.Locks))
		if err != nil {
			return err
		}
		defer table.Close()
		return table.Dump(conntrack.Filter{}, func(s *conntrack.State) {
			met = met || (protocol == 0 || protocol == s.Original.Protocol) &&
				at(c.From, s.Original.Source) && at(c.To, s.Original.Destination) && at(c.ReplyFrom, s.Reply.Source) && at(c.ReplyTo, s.Reply.Destination) &&
				(c.State == "" || s.Original.Protocol == uint8(decision.TCP) && strings.EqualFold(c.State, s.TCP.String())) &&
				(!c.Answered || s.Status&conntrack.StatusSeenReply != 0)
		})
	})
	return met, err
}

// at compares an address with ADDRESS, ADDRESS:PORT or nothing.
func at(want string, a netip.AddrPort) bool {
	address, port, err := learn.ParseAddress(want)
	return err == nil && (!address.IsValid() || address.Unmap() == a.Addr().Unmap()) && (port == 0 || port == a.Port())
}

func (w *work) checkRule(ctx context.Context, c *learn.RuleCheck) (met bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	output, _, err := w.run(ctx, learn.Script{On: c.On, Text: "nft list ruleset; iptables-save; ip6tables-save; true"})
	if err != nil {
		return false, err
	}
	re, err := regexp.Compile(c.Matches)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(output) {
		met = met || re.MatchString(strings.TrimSpace(line))
	}
	return met, nil
}

func (w *work) checkRoute(ctx context.Context, c *learn.RouteCheck) (met bool, detail string, _ error) {
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	output, _, err := w.run(ctx, learn.Script{On: c.On, Text: "ip route get " + c.To})
	if err != nil {
		return false, "", err
	}
	route, _, _ := strings.Cut(output, "\n")
	words := strings.Fields(route)
	has := func(name, value string) bool {
		i := slices.Index(words, name)
		return value == "" || i >= 0 && i+1 < len(words) && words[i+1] == value
	}
	return has("via", c.Via) && has("dev", c.Dev), "the route is: " + route, nil
}

// object finds an object of a lab; nil: there is none.
func object(o *manifest.Objects, kind, namespace, name string) any {
	switch strings.ToLower(kind) {
	case "service":
		return named(o.Services, namespace, name)
	case "endpointslice":
		return named(o.EndpointSlices, namespace, name)
	case "node":
		return named(o.Nodes, namespace, name)
	case "pod":
		return named(o.Pods, namespace, name)
	}
	return nil
}

func named[T metav1.Object](all []T, namespace, name string) any {
	for _, o := range all {
		if o.GetName() == name && (o.GetNamespace() == namespace || o.GetNamespace() == "") {
			return o
		}
	}
	return nil
}

func (w *work) checkObject(c *learn.ObjectCheck) (met bool, detail string, _ error) {
	found := object(w.lab.Objects(), c.Kind, cmp.Or(c.Namespace, "default"), c.Name)
	if found == nil {
		return false, "there is none", nil
	}
	text, err := json.Marshal(found)
	if err != nil {
		return false, "", err
	}
	for _, path := range slices.Sorted(maps.Keys(c.Has)) {
		value, err := fieldOf(text, path)
		if err != nil {
			return false, fmt.Sprintf("it has no %s", path), nil
		}
		re, err := regexp.Compile("^(?:" + c.Has[path] + ")$")
		if err != nil {
			return false, "", err
		}
		if !re.MatchString(value) {
			return false, fmt.Sprintf("its %s is %s", path, value), nil
		}
	}
	return true, "", nil
}

func (w *work) checkRun(ctx context.Context, c *learn.RunCheck) (met bool, detail string, _ error) {
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	output, code, err := w.run(ctx, c.Script)
	if errors.Is(err, context.DeadlineExceeded) {
		return false, fmt.Sprintf("it took longer than %v", scriptTimeout), nil
	}
	if err != nil || code != 0 {
		return false, "", err
	}
	re, err := regexp.Compile(c.Output)
	return err == nil && re.MatchString(output), "", err
}

// fieldOf returns the field of a JSON object at a path, as text.
func fieldOf(object []byte, path string) (string, error) {
	var value any
	if err := json.Unmarshal(object, &value); err != nil {
		return "", err
	}
	j := jsonpath.New("field")
	if err := j.Parse("{." + strings.TrimPrefix(path, ".") + "}"); err != nil {
		return "", fmt.Errorf("field %s: %w", path, err)
	}
	var b strings.Builder
	if err := j.Execute(&b, value); err != nil {
		return "", fmt.Errorf("field %s: %w", path, err)
	}
	return b.String(), nil
}
