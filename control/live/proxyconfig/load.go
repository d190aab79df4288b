package proxyconfig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

const kind = "KubeProxyConfiguration"

// maxFileSize is that of a ConfigMap, from which these files come.
const maxFileSize = 1 << 20

// Load reads a file; see [Parse].
func Load(path string) (Config, []string, error) {
	// Without O_NONBLOCK, opening a pipe waits for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Config{}, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return Config{}, nil, err
	case !info.Mode().IsRegular():
		return Config{}, nil, fmt.Errorf("%s: not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return Config{}, nil, err
	}
	return Parse(path, data)
}

// Parse reads a KubeProxyConfiguration in YAML or JSON. The name of the file is for
// errors.
//
// Like kube-proxy it goes on where a field is unknown or given twice (the last one
// counts) and warns; fields of the right name that nfqproxy does not honour are warned of
// as well, if they differ from the default. Each warning begins with the
// field's path. A value that is not possible is an error; the error has one line for each,
// "FILE: PATH: what is wrong and what is expected", and the Config is of no use then.
func Parse(name string, data []byte) (Config, []string, error) {
	object, warnings, errs := decode(data)
	if len(errs) > 0 {
		return Config{}, nil, inFile(name, errs)
	}
	setDefaults(object)
	config, errs := honoured(object)
	if len(errs) > 0 {
		return Config{}, nil, inFile(name, errs)
	}
	return config, append(warnings, ignored(object)...), nil
}

func inFile(name string, errs []error) error {
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s: %w", name, err)
	}
	return errors.Join(errs...)
}

// decode decodes the file, with warnings for unknown and duplicate fields.
func decode(data []byte) (*v1alpha1.KubeProxyConfiguration, []string, []error) {
	failed := func(err error) (*v1alpha1.KubeProxyConfiguration, []string, []error) { return nil, nil, []error{err} }
	if len(data) > maxFileSize {
		return failed(fmt.Errorf("more than %d bytes: not a %s", maxFileSize, kind))
	}
	var documents []yamlfile.Document
	for text, line := range yamlfile.Split(data) {
		if d, ok := yamlfile.Parse(text, line); ok {
			documents = append(documents, d)
		}
	}
	if len(documents) == 0 {
		return failed(fmt.Errorf("want an object of kind %s", kind))
	}
	document := &documents[0]
	if document.Err != nil {
		return failed(errors.New("neither YAML nor JSON: " + oneLine(document.Err)))
	}
	var warnings []string
	if len(documents) > 1 { // kube-proxy never sees it
		warnings = append(warnings, "only the first YAML document is read")
	}
	for _, field := range document.Duplicates {
		warnings = append(warnings, field+": given twice: the last one counts")
	}
	fields, ok := document.Value.(map[string]any)
	if !ok {
		return failed(fmt.Errorf("want an object of kind %s", kind))
	}
	if err := checkKind(fields); err != nil {
		return failed(err)
	}
	object := new(v1alpha1.KubeProxyConfiguration)
	var decoder yamlfile.Decoder
	var errs []error
	for _, e := range decoder.Decode(fields, object) {
		if _, unknown := errors.AsType[*yamlfile.UnknownField](e.Err); unknown {
			warnings = append(warnings, e.Field+": unknown field, ignored")
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %s", e.Field, oneLine(e.Err)))
	}
	return object, warnings, errs
}

func checkKind(fields map[string]any) error {
	version := v1alpha1.SchemeGroupVersion.String()
	if k := fields["kind"]; k != kind {
		hint := ""
		if k == "ConfigMap" {
			hint = " (the text under its key config.conf)"
		}
		return fmt.Errorf("kind: %v: want %s%s", k, kind, hint)
	}
	if v := fields["apiVersion"]; v != version {
		return fmt.Errorf("apiVersion: %v: want %s", v, version)
	}
	return nil
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
