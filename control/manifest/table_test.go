package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	servicesTable = "NAME  TYPE  CLUSTER-IP  EXTERNAL-IP  PORT(S)  AGE  SELECTOR\n" +
		"service/kubernetes  ClusterIP  10.96.0.1  <none>  443/TCP  25d  <none>\n" +
		"service/web  LoadBalancer  10.96.0.20  198.51.100.7  80:30080/TCP  3d  app=web,tier=front\n"
	endpointsTable = "NAME  ENDPOINTS  AGE\nendpoints/kubernetes  172.20.0.2:6443  25d\nendpoints/web  10.244.1.2:8080,10.244.2.2:8080  3d\n"
)

// TestTables: tables of kubectl get are read, of several kinds, between prompts.
func TestTables(t *testing.T) {
	text := "```\n$ kubectl get svc,ep -o wide\nWarning: v1 Endpoints is deprecated in v1.33+\n" + servicesTable + "\n" + endpointsTable + "\n" +
		"$ kubectl get pods -o wide --show-labels\n" +
		"NAME   READY  STATUS            RESTARTS      AGE  IP          NODE    NOMINATED NODE  READINESS GATES  LABELS\n" +
		"web-1  1/1    Running           2 (3m ago)    1h   10.244.1.2  node-a  <none>          <none>           app=web,tier=front\n" +
		"web-2  0/1    CrashLoopBackOff  12 (2m ago)   1h   10.244.2.2  node-b  <none>          <none>           app=web,tier=front\n" +
		"web-3  0/1    Evicted           0             1h   <none>      node-b  <none>          <none>           app=web,tier=front\n" +
		"\nNAME    STATUS    ROLES          AGE  VERSION  INTERNAL-IP\nnode-a  Ready     control-plane  25d  v1.30.0  172.20.0.2\nnode-b  NotReady  <none>         25d  v1.30.0  172.20.0.3\n```\n"
	o, err := loadBytes("tables.txt", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Notes) != 1 || !strings.Contains(o.Notes[0], "traffic policies") { // once, for all Services
		t.Errorf("notes %q, want that no column shows traffic policies", o.Notes)
	}
	var got []string
	for _, s := range o.Services {
		got = append(got, fmt.Sprint(s.Name, " ", s.Spec.Type, " ", s.Spec.ClusterIP, " ", len(s.Spec.Selector), " ", s.Spec.Ports[0].NodePort, " ", len(s.Status.LoadBalancer.Ingress)))
	}
	for _, s := range o.EndpointSlices {
		for _, e := range s.Endpoints {
			got = append(got, fmt.Sprint(s.Labels[discoveryv1.LabelServiceName], " ", e.Addresses[0], " ", *s.Ports[0].Port))
		}
	}
	for _, p := range o.Pods {
		got = append(got, fmt.Sprint(p.Name, " ", p.Spec.NodeName, " ", p.Status.Phase, " ", p.Status.Conditions[0].Status, " ", p.Labels["tier"], " ", p.Status.Reason))
	}
	for _, n := range o.Nodes {
		got = append(got, fmt.Sprint(n.Name, " ", n.Status.Addresses[0].Address, " ", n.Status.Conditions[0].Status))
	}
	slices.Sort(got)
	want := []string{
		"kubernetes 172.20.0.2 6443", "kubernetes ClusterIP 10.96.0.1 0 0 0",
		"node-a 172.20.0.2 True", "node-b 172.20.0.3 False",
		"web 10.244.1.2 8080", "web 10.244.2.2 8080", "web LoadBalancer 10.96.0.20 2 30080 1",
		"web-1 node-a Running True front ", "web-2 node-b Running False front ", "web-3 node-b Failed False front Evicted",
	}
	if !slices.Equal(got, want) {
		t.Errorf("read\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestTablesNamespace: the namespace is that of the column or of the command; else it is said to be a guess.
func TestTablesNamespace(t *testing.T) {
	const guess = "default is assumed"
	tables := strings.NewReplacer("service/kubernetes  ClusterIP  10.96.0.1  <none>  443/TCP  25d  <none>\n", "", "endpoints/kubernetes  172.20.0.2:6443  25d\n", "").Replace(servicesTable + "\n" + endpointsTable)
	for _, c := range []struct {
		name, text, namespace string
		guessed               bool
	}{
		{"no command", tables, "default", true},
		{"a command", "$ kubectl get svc,ep -n shop -o wide\n" + tables, "shop", false},
		{"a long flag", "root@a:~# kubectl --namespace=shop get svc,ep\n" + tables, "shop", false},
		{"a command without a namespace", "$ kubectl get svc,ep\n" + tables, "default", true},
		{"a column", strings.NewReplacer("NAME ", "NAMESPACE  NAME ", "service/", "shop  service/", "endpoints/", "shop  endpoints/").Replace(tables), "shop", false},
		{"the Service of the API servers", servicesTable + "\n" + endpointsTable, "default", false},
	} {
		o, err := loadBytes("f.txt", []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if s := o.Services[len(o.Services)-1]; s.Namespace != c.namespace || strings.Contains(strings.Join(o.Notes, ""), guess) != c.guessed || o.EndpointSlices[0].Namespace != c.namespace {
			t.Errorf("%s: namespace %s, notes %q", c.name, s.Namespace, o.Notes)
		}
	}
}

// TestTablesRefuse: what a table leaves out is not made up.
func TestTablesRefuse(t *testing.T) {
	slices := "NAME  ADDRESSTYPE  PORTS  ENDPOINTS  AGE\nkubernetes  IPv4  6443  172.20.0.2  25d\n"
	for _, tt := range []struct{ name, text, want string }{
		{"no endpoints of a Service", servicesTable + "\n" + strings.Replace(endpointsTable, "endpoints/web", "endpoints/wbe", 1), "the tables have no endpoints of it"},
		{"endpoints left out", servicesTable + "\n" + strings.Replace(endpointsTable, "10.244.2.2:8080", "10.244.2.2:8080 + 1 more...", 1), "is not all"},
		{"several ports", strings.Replace(servicesTable, "80:30080/TCP", "80:30080/TCP,443:30443/TCP", 1) + "\n" + endpointsTable, "belong to which of its 2 ports"},
		{"slices show no readiness", servicesTable + "\n" + slices + "web-x7  IPv4  8080  10.244.1.2  3d\n", "whether endpoint 10.244.1.2:8080 of EndpointSlice web-x7 is ready is not in the tables"},
		{"a port without protocol", strings.Replace(servicesTable, "443/TCP", "443", 1) + "\n" + endpointsTable, "want 80/TCP"},
		{"Pods alone", "NAME  READY  STATUS  RESTARTS  AGE\nweb-1  0/1  Pending  0  1h\n", "without Services"},
	} {
		o, err := loadBytes("f.txt", []byte(tt.text))
		if err == nil && len(o.Services) == 2 && len(o.EndpointSlices) == 1 { // the other Service is known
			err = errors.New(o.Services[1].Annotations[NotShown])
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	pods := "\nNAME  READY  STATUS  RESTARTS  AGE  IP\nweb-1  1/1  Running  0  1h  10.244.1.2\nweb-2  0/1  Running  0  1h  10.244.2.2\n"
	if o, err := loadBytes("f.txt", []byte(servicesTable+"\n"+slices+"web-x7  IPv4  8080  10.244.1.2,10.244.2.2  3d\n"+pods)); err != nil || len(o.EndpointSlices) != 2 || len(o.EndpointSlices[1].Endpoints) != 1 {
		t.Errorf("%v, %+v", err, o)
	}
	// Without endpoints nothing is left out.
	o, err := loadBytes("f.txt", []byte(strings.Replace(servicesTable, "80:30080/TCP", "80:30080/TCP,443:30443/TCP", 1)+"\n"+strings.Replace(endpointsTable, "10.244.1.2:8080,10.244.2.2:8080", "<none>", 1)))
	if err != nil || len(o.Services) != 2 || len(o.EndpointSlices) != 3 {
		t.Errorf("%v, %+v", err, o)
	}
}

// TestDescribedTogether: of a Service and its Endpoints those that are not ready are known, and other objects cost only themselves.
func TestDescribedTogether(t *testing.T) {
	o, err := loadBytes("f.txt", []byte("Name:  web\nNamespace:  shop\nSelector:  app=web\nType:  ClusterIP\nIP:  10.96.1.2\nPort:  <unset>  80/TCP\nTargetPort:  8080/TCP\nEndpoints:  \nSession Affinity:  None\n"+
		"\nName:  web\nNamespace:  shop\nSubsets:\n  Addresses:  <none>\n  NotReadyAddresses:  10.244.1.2\n  Ports:\n    <unset>  8080  TCP\n"+
		"\nName:  web-1\nNamespace:  shop\nPriority:  0\nNode:  a/192.0.2.1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Services) != 1 || len(o.EndpointSlices) != 1 || len(o.EndpointSlices[0].Endpoints) != 1 || *o.EndpointSlices[0].Endpoints[0].Conditions.Ready {
		t.Errorf("%+v", o.EndpointSlices)
	}
}
