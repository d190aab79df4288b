package manifest

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// pod makes a Pod of what describe prints: where it runs, its labels, its ports and its state. The names of its ports are not shown.
func (d *described) pod(metadata map[string]any) []document {
	metadata["annotations"] = map[string]any{NotShown: "kubectl describe"}
	status, spec := map[string]any{}, map[string]any{}
	node, address, _ := strings.Cut(d.field("Node"), "/")
	if node != "" {
		spec["nodeName"] = node
	}
	if ip := d.field("IP"); ip != "" {
		status["podIP"], status["podIPs"] = ip, []any{map[string]any{"ip": ip}}
		if ip == address {
			spec["hostNetwork"] = true
		}
	}
	phase, _, _ := strings.Cut(d.field("Status"), " ")
	if status["phase"] = phase; phase == "Terminating" {
		metadata["deletionTimestamp"], status["phase"] = "1970-01-01T00:00:00Z", "Running"
	}
	if reason := d.field("Reason"); reason != "" {
		status["reason"] = reason
	}
	spec["containers"], status["containerStatuses"] = d.containers("Containers")
	if d.has("Init Containers") {
		spec["initContainers"], status["initContainerStatuses"] = d.containers("Init Containers")
	}
	var conditions []any
	for _, line := range d.linesOf("Conditions") {
		if f := strings.Fields(line); len(f) == 2 && f[0] != "Type" {
			conditions = append(conditions, map[string]any{"type": f[0], "status": f[1]})
		}
	}
	status["conditions"] = conditions
	return []document{made(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})}
}

// containerField is the first field of a container: of one that a template describes, the image.
var containerField = regexp.MustCompile(`^(Container ID|Image):`)

// containers are those of a Pod, and their states.
func (d *described) containers(field string) (specs, statuses []any) {
	var spec, status, state map[string]any
	lines := d.linesOf(field)
	for i, line := range lines {
		name, value, _ := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); value == "" && name != "Container ID" && i+1 < len(lines) && containerField.MatchString(lines[i+1]) {
			spec = map[string]any{"name": name, "image": "unknown"}
			status = map[string]any{"name": name, "image": "unknown", "imageID": "", "restartCount": int64(0), "ready": false}
			specs, statuses, state = append(specs, spec), append(statuses, status), nil
			continue
		}
		if spec == nil {
			continue
		}
		switch name {
		case "Port", "Ports":
			var ports []any
			for part := range strings.SplitSeq(value, ",") {
				digits, protocol, _ := strings.Cut(strings.TrimSpace(part), "/")
				protocol, _, _ = strings.Cut(protocol, " ")
				if n, err := strconv.ParseInt(digits, 10, 32); err == nil && n > 0 && protocol != "" {
					ports = append(ports, map[string]any{"containerPort": n, "protocol": protocol})
				}
			}
			if len(ports) > 0 {
				spec["ports"] = ports
			}
		case "State", "Last State":
			if state = map[string]any{}; value == "Terminated" {
				state["exitCode"] = int64(0)
			}
			key := map[string]string{"State": "state", "Last State": "lastState"}[name]
			if slices.Contains([]string{"Waiting", "Running", "Terminated"}, value) {
				status[key] = map[string]any{strings.ToLower(value): state}
			}
		case "Reason":
			if state != nil {
				state["reason"] = value
			}
		case "Exit Code":
			if n, err := strconv.ParseInt(value, 10, 32); err == nil && state != nil {
				state["exitCode"] = n
			}
		case "Ready":
			state, status["ready"] = nil, value == "True"
			now, _ := status["state"].(map[string]any)
			if _, running := now["running"]; running && value == "True" && field != "Containers" {
				spec["restartPolicy"] = "Always" // a sidecar: another init container is ready when it has ended
			}
		case "Restart Count", "Environment":
			spec = nil // what follows, such as the environment, may have fields of these names
		}
	}
	return specs, statuses
}
