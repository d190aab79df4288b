package diagnose

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/conntracklist"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// ConnectionEntries are the findings about connection entries of a node (conntrack -L) that contradict the Services.
func (c *Cluster) ConnectionEntries(entries []conntracklist.Entry) (found []Finding) {
	j := conntracklist.Judge(c.table(c.config.Name), entries)
	hidden := make(map[string]bool)
	j.Contradictions = slices.DeleteFunc(j.Contradictions, func(e conntracklist.Contradiction) bool {
		if e.Kind == conntracklist.NotMasqueraded {
			return false
		}
		service := e.Service.Name.Service().String()
		why := c.objects.EndpointsNotShown(service)
		if why != "" && !hidden[service] {
			what, do, _ := strings.Cut(why, ": ")
			found = append(found, Finding{
				Code: NotShown, Object: "Service " + service, Do: do,
				Text: fmt.Sprintf("whether connection entries to Service %s lead to its endpoints is not known: %s", service, what),
			})
		}
		hidden[service] = why != ""
		return why != ""
	})
	for i := range j.Contradictions {
		e := &j.Contradictions[i]
		f := entryFinding(e)
		readyOnly := func(s *discoveryv1.EndpointSlice) bool { return s.Annotations[manifest.ReadyOnly] != "" }
		if of := e.Service.Name; f.Code == StaleConnections && slices.ContainsFunc(c.slices[name{Namespace: of.Namespace, Name: of.Name}], readyOnly) {
			f.Text += " that is ready; kubectl prints no others here"
			f.Do = "if it is gone, " + f.Do
		}
		found = append(found, f)
	}
	if !j.Masquerade && j.Entries > 0 {
		found = append(found, Finding{
			Code: NotShown, Text: "it is not known which node the connection entries are from: entries to node ports, and masquerading, are not checked",
			Do: "give the node's name with --node, and its Node object with --objects",
		})
	}
	for i := range found {
		c.Ignore(&found[i])
	}
	return found
}

// EntriesBesideRules are the findings about connection entries of a node whose Services are known by its rules only. These
// have the endpoints that get new connections, and open ones may lead to others: that is not judged.
func EntriesBesideRules(t *decision.Table, entries []conntracklist.Entry) []Finding {
	j := conntracklist.Judge(t, entries)
	j.Contradictions = slices.DeleteFunc(j.Contradictions, func(c conntracklist.Contradiction) bool {
		return c.Kind != conntracklist.Untranslated && c.Kind != conntracklist.NotMasqueraded
	})
	return entryFindings(j)
}

func entryFindings(j *conntracklist.Judgement) (found []Finding) {
	for i := range j.Contradictions {
		found = append(found, entryFinding(&j.Contradictions[i]))
	}
	return found
}

// entryFinding describes a group of entries.
func entryFinding(c *conntracklist.Contradiction) Finding {
	s, protocol := c.Service, c.Service.Protocol
	f := Finding{Object: "Service " + s.Name.Service().String()}
	entries := fmt.Sprintf("%s to %s (%s), such as that of %s (line %d),", quantity.Count(c.Count, protocol.String()+" connection entry"), s.Name, c.At, c.Example.Original.Source, c.Example.Line)
	f.Text = fmt.Sprintf("%s %s to %s", entries, verb(c.Count, "leads", "lead"), c.Endpoint)
	remove := fmt.Sprintf("conntrack -D -p %s --orig-dst %s --orig-port-dst %d --reply-src %s --reply-port-src %d", protocol.Lower(), c.At.Addr(), c.At.Port(), c.Endpoint.Addr(), c.Endpoint.Port())
	f.Do = "on the node: " + remove
	switch c.Kind {
	case conntracklist.NoEndpoint, conntracklist.NotServing:
		f.Code = StaleConnections
		f.Text += ", which is not an endpoint"
		if c.Kind == conntracklist.NotServing {
			f.Text += " that serves, while others do"
		}
		if protocol == decision.UDP {
			f.Code = StuckUDP
		} else {
			f.Do += ": the client's next packet goes to another endpoint, which resets the connection, so that the client connects again"
		}
	case conntracklist.OtherService:
		f.Code = EntryElsewhere
		f.Text += fmt.Sprintf(", which is an endpoint of %s, and not of this Service", c.Other.Name)
	case conntracklist.Untranslated:
		f.Code = EntryNotTranslated
		f.Text = fmt.Sprintf("%s %s no translation, although the Service has endpoints", entries, verb(c.Count, "has", "have"))
		f.Do = "look for a rule that prevents their translation (nfqproxy doctor --rules); if they are older than the proxy or the endpoints, " + f.Do
	case conntracklist.NotMasqueraded:
		f.Code = EntryNotMasqueraded
		f.Text += fmt.Sprintf(" with the client's address as source, which must be masqueraded: %s", masqueradeReason(c.Mark))
		f.Do = "look for the rule that prevents masquerading: nfqproxy doctor --rules"
	}
	return f
}

// masqueradeReason is why a connection has to be masqueraded.
func masqueradeReason(m decision.Mark) string {
	switch m {
	case decision.MarkHairpin:
		return "the client is the endpoint, and replies to itself would not be translated back"
	case decision.MarkExternal:
		return "the endpoint's reply has to return through this node"
	case decision.MarkAll:
		return "the proxy masquerades everything (--masquerade-all)"
	}
	return "the client is not a Pod, according to the proxy's --cluster-cidr"
}
