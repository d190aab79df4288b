package audit

import (
	"encoding/json"
)

// The form of a comparison as JSON. Line numbers are those of the file that the rule is
// in; 0 is left out.
type (
	comparisonJSON struct {
		Version   int            `json:"version"`
		Same      bool           `json:"same"`
		Services  []serviceJSON  `json:"services"`
		Servers   []ServerChange `json:"virtualServers,omitempty"`
		Proxy     []Detail       `json:"proxy"`
		Tables    []TableChange  `json:"tables"`
		Reordered int            `json:"reordered"`
		Notes     []string       `json:"notes,omitempty"`
	}
	serviceJSON struct {
		Name    string   `json:"name"` // or without one its address
		Change  Change   `json:"change"`
		Details []Detail `json:"details,omitempty"`
		Before  *Service `json:"before,omitempty"`
		After   *Service `json:"after,omitempty"`
	}
)

// MarshalJSON writes rules as iptables-save prints them, with the numbers of their lines.
func (c *Comparison) MarshalJSON() ([]byte, error) {
	j := comparisonJSON{Version: 1, Same: c.Same(), Services: []serviceJSON{}, Servers: c.Servers, Notes: c.Notes, Proxy: append([]Detail{}, c.Proxy...), Tables: append([]TableChange{}, c.Tables...), Reordered: c.Reordered}
	for i := range c.Services {
		s := &c.Services[i]
		j.Services = append(j.Services, serviceJSON{s.Service().Title(), s.Change(), s.Details, s.Before, s.After})
	}
	return json.Marshal(j)
}
