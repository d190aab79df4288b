package manifest

import "strings"

// node makes a Node of what describe prints.
func (d *described) node(metadata map[string]any) []document {
	delete(metadata, "namespace")
	rows := func(field string, add func(row []string)) {
		for _, line := range d.linesOf(field) {
			if row := columns.Split(line, -1); len(row) > 1 && row[0] != "Type" && row[0] != "----" {
				add(row)
			}
		}
	}
	var addresses, conditions []any
	rows("Addresses", func(row []string) {
		addresses = append(addresses, map[string]any{"type": strings.TrimSuffix(row[0], ":"), "address": row[1]})
	})
	rows("Conditions", func(row []string) {
		condition := map[string]any{"type": row[0], "status": row[1]}
		if len(row) > 5 {
			condition["reason"], condition["message"] = row[4], row[5]
		}
		conditions = append(conditions, condition)
	})
	spec := map[string]any{}
	if cidrs := d.list("PodCIDRs", "PodCIDR"); len(cidrs) > 0 {
		spec["podCIDR"], spec["podCIDRs"] = cidrs[0], cidrs
	}
	return []document{made(map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": map[string]any{"addresses": addresses, "conditions": conditions},
	})}
}
