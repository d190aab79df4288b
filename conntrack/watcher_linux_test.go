package conntrack

import (
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

func TestEventsEnabled(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string // "": there, but cannot be read
		want  string            // "": no error
	}{
		"automatic":                    {map[string]string{eventsSetting: "2\n", acctSetting: "0\n"}, ""},
		"always":                       {map[string]string{eventsSetting: "1\n"}, ""},
		"off":                          {map[string]string{eventsSetting: "0\n"}, "set net.netfilter.nf_conntrack_events to 2"},
		"settings are not shown":       {nil, ""},
		"not in this kernel":           {map[string]string{acctSetting: "0\n"}, "CONFIG_NF_CONNTRACK_EVENTS"},
		"there, but it cannot be read": {map[string]string{eventsSetting: ""}, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			err := eventsEnabled(func(path string) ([]byte, error) {
				switch text, ok := tt.files[path]; {
				case !ok:
					return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
				case text == "":
					return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EACCES}
				default:
					return []byte(text), nil
				}
			})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
