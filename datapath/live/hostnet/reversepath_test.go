package hostnet

import "testing"

func TestReversePathOf(t *testing.T) {
	for _, tt := range []struct {
		name          string
		confs         []interfaceConf
		selective     bool
		strict, loose []uint32
	}{
		{"off", []interfaceConf{{index: allInterfaces}, {index: defaultInterfaces, rpFilter: 1}, {index: 2}}, false, nil, nil},
		{"of one", []interfaceConf{{index: 3, rpFilter: 1}, {index: 2, rpFilter: 2}, {index: allInterfaces}}, false, []uint32{3}, []uint32{2}},
		{"of all", []interfaceConf{{index: allInterfaces, rpFilter: 1}, {index: 4}, {index: 3, rpFilter: 2}, {index: 2, rpFilter: 1}}, false, []uint32{2, 4}, []uint32{3}},
		{"loose of all", []interfaceConf{{index: allInterfaces, rpFilter: 2}, {index: 2, rpFilter: 1}}, false, nil, []uint32{2}},
		{"links without routes", []interfaceConf{{index: 2, rpFilter: 1}, {index: 3, ignoreLinkDown: true}}, false, nil, []uint32{2}},
		{"links without routes by default", []interfaceConf{{index: 2, rpFilter: 1}, {index: defaultInterfaces, ignoreLinkDown: true}}, false, []uint32{2}, nil},
		{"selectors", []interfaceConf{{index: 2, rpFilter: 1}}, true, nil, nil},
	} {
		want := ReversePath{Strict: tt.strict, Loose: tt.loose, Selective: tt.selective}
		if got := reversePathOf(tt.confs, tt.selective); !got.equal(want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, want)
		}
	}
}
