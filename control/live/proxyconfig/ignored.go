package proxyconfig

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ignored names the fields that are set to something other than their default and that
// nfqproxy cannot honour: one warning each, which begins with the field's path.
func ignored(c *object) []string {
	var warnings []string
	warn := func(set bool, field string, value any, why string) {
		if set {
			warnings = append(warnings, fmt.Sprintf("%s: %v: ignored: %s", field, value, why))
		}
	}
	if c.Mode != modeIPTables {
		warnings = append(warnings, fmt.Sprintf("mode: %s: nfqproxy has one mode, which decides as mode %s; it uses the settings of this mode for masquerading, node ports and sync periods", c.Mode, modeIPTables))
	}
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(c.FeatureGates)), func(name string) bool { return name == GateExternalIPs })
	warn(len(others) > 0, "featureGates", strings.Join(others, ", "), "nfqproxy's only feature gate is "+GateExternalIPs)
	warn(c.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion", c.ShowHiddenMetricsForVersion, "nfqproxy hides no metrics")
	warn(c.PortRange != "", "portRange", c.PortRange, "kube-proxy does not use it either")
	warn(c.WindowsRunAsService, "windowsRunAsService", true, "nfqproxy is for Linux")
	warnings = append(warnings, set("winkernel", c.Winkernel, "nfqproxy is for Linux")...)

	ipvs := c.IPVS
	ipvs.SyncPeriod.Duration, ipvs.MinSyncPeriod.Duration = 0, 0 // not relevant in other modes
	warnings = append(warnings, set("ipvs", ipvs, "nfqproxy does not use IPVS")...)

	frequency := c.Logging.FlushFrequency.Duration.Duration
	warn(frequency != flushFrequency, "logging.flushFrequency", frequency, "the log is not buffered")
	warn(len(c.Logging.VModule) > 0, "logging.vmodule", fmt.Sprintf("%d patterns", len(c.Logging.VModule)), "the level is the same for all files")
	for _, o := range []struct {
		field string
		split bool
		size  int64
	}{
		{"logging.options.text", c.Logging.Options.Text.SplitStream, c.Logging.Options.Text.InfoBufferSize.Value()},
		{"logging.options.json", c.Logging.Options.JSON.SplitStream, c.Logging.Options.JSON.InfoBufferSize.Value()},
	} {
		warn(o.split, o.field+".splitStream", true, "the whole log goes to standard error")
		warn(o.size != 0, o.field+".infoBufferSize", o.size, "the log is not buffered")
	}
	return warnings
}

// set warns of each field of a section that is not zero. An empty list is none.
func set(section string, fields any, why string) []string {
	var warnings []string
	v := reflect.ValueOf(fields)
	for i := range v.NumField() {
		f := v.Field(i)
		if f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0 {
			continue
		}
		value := f.Interface()
		if d, ok := value.(metav1.Duration); ok {
			value = d.Duration
		}
		warnings = append(warnings, fmt.Sprintf("%s.%s: %v: ignored: %s", section, v.Type().Field(i).Tag.Get("json"), value, why))
	}
	return warnings
}
