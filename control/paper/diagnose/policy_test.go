package diagnose

import (
	"strings"
	"testing"
)

// TestPolicies: network policies as their API defines them. The source is Pod shop/client, the destination Service
// shop/web.
func TestPolicies(t *testing.T) {
	other := edit{"", "apiVersion: v1\nkind: Pod\nmetadata: {name: job, namespace: batch, labels: {app: job}}\nspec: {nodeName: node-a, containers: [{name: job, image: job}]}\nstatus: {phase: Running, podIP: 10.244.1.77, podIPs: [{ip: 10.244.1.77}]}"}
	batch := edit{"", "apiVersion: v1\nkind: Namespace\nmetadata: {name: batch, labels: {team: data}}"}
	const web = "podSelector: {matchLabels: {app: web}}"
	for name, tt := range map[string]struct {
		edits []edit
		from  string // empty: shop/client
		to    string // empty: web.shop:80
		want  string // part of the cause; empty: it works
	}{
		"of other Pods":          {edits: []edit{policy("p", "{podSelector: {matchLabels: {app: db}}}")}},
		"deny all":               {edits: []edit{policy("p", "{podSelector: {}}")}, want: "NetworkPolicy shop/p does not allow ingress from Pod shop/client to 8080/TCP of Pod shop/web-1"},
		"all sources":            {edits: []edit{policy("p", "{"+web+", ingress: [{}]}")}},
		"all ports of a source":  {edits: []edit{policy("p", "{"+web+", ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}")}},
		"another source":         {edits: []edit{policy("p", "{"+web+", ingress: [{from: [{podSelector: {matchLabels: {app: admin}}}]}]}")}, want: "does not allow ingress"},
		"the service port":       {edits: []edit{policy("p", "{"+web+", ingress: [{ports: [{port: 80}]}]}")}, want: "to 8080/TCP"},
		"the target port":        {edits: []edit{policy("p", "{"+web+", ingress: [{ports: [{port: 8080}]}]}")}},
		"the port's name":        {edits: []edit{policy("p", "{"+web+", ingress: [{ports: [{port: http}]}]}")}},
		"a range of ports":       {edits: []edit{policy("p", "{"+web+", ingress: [{ports: [{port: 8000, endPort: 9000}]}]}")}},
		"another range":          {edits: []edit{policy("p", "{"+web+", ingress: [{ports: [{port: 8000, endPort: 8079}]}]}")}, want: "does not allow"},
		"the other protocol":     {edits: []edit{policy("p", "{"+web+", ingress: [{ports: [{protocol: UDP, port: 8080}]}]}")}, want: "does not allow"},
		"two policies, one lets": {edits: []edit{policy("p", "{podSelector: {}}"), policy("q", "{"+web+", ingress: [{}]}")}},
		"two policies":           {edits: []edit{policy("p", "{podSelector: {}}"), policy("q", "{"+web+"}")}, want: "NetworkPolicies shop/p, shop/q do not allow ingress"},
		"a block":                {edits: []edit{policy("p", "{"+web+", ingress: [{from: [{ipBlock: {cidr: 10.244.0.0/16}}]}]}")}},
		"except":                 {edits: []edit{policy("p", "{"+web+", ingress: [{from: [{ipBlock: {cidr: 10.244.0.0/16, except: [10.244.1.0/24]}}]}]}")}, want: "does not allow"},
		"other namespace":        {edits: []edit{other, policy("p", "{"+web+", ingress: [{from: [{podSelector: {}}]}]}")}, from: "batch/job", want: "ingress from Pod batch/job"},
		"namespace by name":      {edits: []edit{other, policy("p", "{"+web+", ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: batch}}}]}]}")}, from: "batch/job"},
		"namespace by label":     {edits: []edit{other, batch, policy("p", "{"+web+", ingress: [{from: [{namespaceSelector: {matchLabels: {team: data}}}]}]}")}, from: "batch/job"},
		"other label":            {edits: []edit{other, batch, policy("p", "{"+web+", ingress: [{from: [{namespaceSelector: {matchLabels: {team: web}}}]}]}")}, from: "batch/job", want: "does not allow"},
		"unknown labels":         {edits: []edit{other, policy("p", "{"+web+", ingress: [{from: [{namespaceSelector: {matchLabels: {team: web}}}]}]}")}, from: "batch/job"},
		"namespace and Pod":      {edits: []edit{other, batch, policy("p", "{"+web+", ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}]}]}")}, from: "batch/job", want: "does not allow"},
		"egress":                 {edits: []edit{policy("p", "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress]}")}, want: "egress from Pod shop/client to 8080/TCP of Pod shop/web-1"},
		"egress by default":      {edits: []edit{policy("p", "{podSelector: {matchLabels: {app: client}}, egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}")}, want: "egress from Pod shop/client"},
		"egress to the Pods":     {edits: []edit{policy("p", "{podSelector: {matchLabels: {app: client}}, egress: [{to: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 8080}]}]}")}},
		"egress to the Service":  {edits: []edit{policy("p", "{podSelector: {matchLabels: {app: client}}, egress: [{to: [{ipBlock: {cidr: 10.96.0.0/12}}]}]}")}, want: "egress from Pod shop/client"},
		"ingress only":           {edits: []edit{policy("p", "{podSelector: {matchLabels: {app: client}}, policyTypes: [Ingress]}")}},
		"from a node":            {edits: []edit{policy("p", "{podSelector: {}}")}, from: "node-a"},
		"masqueraded":            {edits: []edit{policy("p", "{podSelector: {}}")}, from: "outside"},
		"to a Pod itself":        {edits: []edit{policy("p", "{podSelector: {}}")}, to: "pod/shop/web-1:8080", want: "ingress from Pod shop/client to 8080/TCP of Pod shop/web-1"},
		"of a Pod on the host":   {edits: []edit{policy("p", "{podSelector: {}}"), {"spec: {nodeName: node-", "spec: {hostNetwork: true, nodeName: node-"}}},
	} {
		t.Run(name, func(t *testing.T) {
			q := Question{From: "shop/client", To: "web.shop:80"}
			if tt.from != "" {
				q.From = tt.from
			}
			if tt.to != "" {
				q.To = tt.to
			}
			a, err := broken(t, tt.edits...).Why(q)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.want == "" && !a.Works:
				t.Errorf("%+v; want it to work", a.Cause)
			case tt.want != "" && (a.Works || a.Cause.Code != PolicyForbids || !strings.Contains(a.Cause.Text, tt.want)):
				t.Errorf("%+v; want %q", a.Cause, tt.want)
			}
		})
	}
}
