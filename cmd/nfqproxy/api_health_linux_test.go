package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Ports of the daemon on each node.
const healthPort, metricsPort = 10256, 10249

// tryGet asks the daemon of a node from the node itself.
func (c *cluster) tryGet(node string, port int, path string) (code int, body string, err error) {
	code, _, body, err = c.fetch(node, fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	return code, body, err
}

func (c *cluster) get(node string, port int, path string) (code int, body string) {
	c.t.Helper()
	code, body, err := c.tryGet(node, port, path)
	c.must(err)
	return code, body
}

// fetch gets a page from a lab host.
func (c *cluster) fetch(host, url string) (code int, header http.Header, body string, err error) {
	c.t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.host(host).Dial(ctx, network, anyPort, netip.MustParseAddrPort(address))
		},
	}}
	response, err := client.Get(url)
	if err != nil {
		return 0, nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header, string(text), err
}

// testMetrics looks at what the cases before have left in the metrics.
func (c *apiCluster) testMetrics() {
	for _, node := range []string{"node-a", "node-b"} {
		for _, metric := range []string{
			`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`,
			`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv6"}`,
			`kubeproxy_sync_proxy_rules_duration_seconds_count`,
			`kubeproxy_sync_proxy_rules_service_changes_total`,
			`kubeproxy_sync_proxy_rules_endpoint_changes_total`,
			`kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"}`,
			`kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"}`,
			`kubeproxy_proxy_healthz_total{code="200"}`,
		} {
			if v := c.metric(node, metric); v <= 0 {
				c.t.Errorf("%s: %s is %g after all these changes", node, metric, v)
			}
		}
		for _, metric := range []string{`kubeproxy_sync_proxy_rules_service_changes_pending`, `kubeproxy_sync_proxy_rules_endpoint_changes_pending`} {
			c.await(metric+" to be 0", func(context.Context) error {
				if v := c.metric(node, metric); v != 0 {
					return fmt.Errorf("%g", v)
				}
				return nil
			})
		}
	}
	// The table that metrics tell of is the one that decides.
	svc := c.service("measured", "measured")
	p := c.pod("measured-1", "measured", "node-a")
	for node, r := range c.reaches(fronts(svc), p) {
		if v := c.metric(node, "nfqproxy_table_generation"); v < float64(r.Generation) {
			c.t.Errorf("%s: generation %g, and table %d has decided already", node, v, r.Generation)
		}
	}
	p.delete()
	c.deleteService(svc.Name)
}

// metric reads one sample.
func (c *cluster) metric(node, name string) float64 {
	c.t.Helper()
	code, body := c.get(node, metricsPort, "/metrics")
	for s := bufio.NewScanner(strings.NewReader(body)); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			c.must(err)
			return v
		}
	}
	c.t.Fatalf("%s: status %d, no metric %s", node, code, name)
	return 0
}

// testHealthCheckNodePort asks as a load balancer does which nodes have endpoints.
func (c *apiCluster) testHealthCheckNodePort() {
	svc := c.service("lb", "lb", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	})
	expect := func(node string, code, endpoints int) {
		c.t.Helper()
		for _, f := range bothFamilies {
			url := fmt.Sprintf("http://%s/healthz", netip.AddrPortFrom(c.addressOf(node, f), uint16(svc.Spec.HealthCheckNodePort)))
			c.await(fmt.Sprintf("%s to answer %d", url, code), func(context.Context) error {
				got, header, body, err := c.fetch("outside", url)
				if err != nil {
					return err
				}
				var answer struct {
					Service             struct{ Namespace, Name string }
					LocalEndpoints      int
					ServiceProxyHealthy bool
				}
				if err := json.Unmarshal([]byte(body), &answer); err != nil {
					return err
				}
				weight := header.Get("X-Load-Balancing-Endpoint-Weight")
				if got != code || answer.LocalEndpoints != endpoints || !answer.ServiceProxyHealthy || weight != strconv.Itoa(endpoints) ||
					answer.Service.Namespace != "default" || answer.Service.Name != svc.Name {
					return fmt.Errorf("%d, weight %q, %s", got, weight, body)
				}
				return nil
			})
		}
	}
	expect("node-a", http.StatusServiceUnavailable, 0)
	one, two := c.pod("lb-1", "lb", "node-a"), c.pod("lb-2", "lb", "node-a")
	expect("node-a", http.StatusOK, 2)
	expect("node-b", http.StatusServiceUnavailable, 0)
	one.terminate()
	expect("node-a", http.StatusOK, 1)
	two.terminate()
	expect("node-a", http.StatusServiceUnavailable, 0)
	three := c.pod("lb-3", "lb", "node-b")
	expect("node-b", http.StatusOK, 1)
	for _, p := range []*pod{one, two, three} {
		p.delete()
	}
	expect("node-b", http.StatusServiceUnavailable, 0)
	c.deleteService(svc.Name)
	url := fmt.Sprintf("http://%s/", netip.AddrPortFrom(c.addressOf("node-a", v4), uint16(svc.Spec.HealthCheckNodePort)))
	c.await("the port to be closed", func(context.Context) error {
		if code, _, _, err := c.fetch("outside", url); !isRefused(err) {
			return fmt.Errorf("%d, %v", code, err)
		}
		return nil
	})
}

// testNodeEligibility: load balancers stop to send to a node that the autoscaler is
// about to delete. That is no reason to start the daemon again.
func (c *apiCluster) testNodeEligibility() {
	expect := func(path string, code int, text string) {
		c.t.Helper()
		c.await(fmt.Sprintf("%s to answer %d", path, code), func(context.Context) error {
			if got, body := c.get("node-a", healthPort, path); got != code || !strings.Contains(body, text) {
				return fmt.Errorf("%d %s", got, body)
			}
			return nil
		})
	}
	c.patchNode("node-a", `{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}}`)
	expect("/healthz", http.StatusServiceUnavailable, `"nodeEligible":false`)
	expect("/livez", http.StatusOK, `"healthy":true`)
	c.patchNode("node-a", `{"spec":{"taints":null}}`)
	expect("/healthz", http.StatusOK, `"nodeEligible":true`)
}
