package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

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
			if v := c.Metric(node, metric); v <= 0 {
				c.T.Errorf("%s: %s is %g after all these changes", node, metric, v)
			}
		}
		for _, metric := range []string{`kubeproxy_sync_proxy_rules_service_changes_pending`, `kubeproxy_sync_proxy_rules_endpoint_changes_pending`} {
			c.await(metric+" to be 0", func(context.Context) error {
				if v := c.Metric(node, metric); v != 0 {
					return fmt.Errorf("%g", v)
				}
				return nil
			})
		}
	}
	// The metric is that of the table that decides, as soon as the kernel has it, too.
	svc := c.service("measured", "measured")
	p := c.pod("measured-1", "measured", "node-a")
	for node, r := range c.reaches(fronts(svc), p) {
		c.await(fmt.Sprintf("the generation of %s to be %d", node, r.Generation), func(context.Context) error {
			if v := c.Metric(node, "nfqproxy_table_generation"); v < float64(r.Generation) {
				return fmt.Errorf("%g", v)
			}
			return nil
		})
	}
	p.delete()
	c.deleteService(svc.Name)
}

// testHealthCheckNodePort asks as a load balancer does which nodes have endpoints.
func (c *apiCluster) testHealthCheckNodePort() {
	svc := c.service("lb", "lb", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	})
	expect := func(node string, code, endpoints int) {
		c.T.Helper()
		for _, f := range bothFamilies {
			url := fmt.Sprintf("http://%s/healthz", netip.AddrPortFrom(c.AddressOf(node, f), uint16(svc.Spec.HealthCheckNodePort)))
			c.await(fmt.Sprintf("%s to answer %d", url, code), func(context.Context) error {
				got, header, body, err := c.Fetch("outside", url)
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
	url := fmt.Sprintf("http://%s/", netip.AddrPortFrom(c.AddressOf("node-a", v4), uint16(svc.Spec.HealthCheckNodePort)))
	c.await("the port to be closed", func(context.Context) error {
		if code, _, _, err := c.Fetch("outside", url); !isRefused(err) {
			return fmt.Errorf("%d, %v", code, err)
		}
		return nil
	})
}

// testNodeEligibility: load balancers stop to send to a node that the autoscaler is
// about to delete. That is no reason to start the daemon again.
func (c *apiCluster) testNodeEligibility() {
	expect := func(path string, code int, text string) {
		c.T.Helper()
		c.await(fmt.Sprintf("%s to answer %d", path, code), func(context.Context) error {
			if got, body := c.Get("node-a", e2etest.HealthPort, path); got != code || !strings.Contains(body, text) {
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
