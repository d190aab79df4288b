package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/nearest"
)

// checkNames makes an error of services and pods in lists of a flow API's filters that it does
// not know. What it cannot be asked is no error: the caller has asked it something, too.
func checkNames(ctx context.Context, observer observe.Observer, services, pods string) error {
	if services == "" && pods == "" {
		return nil
	}
	n, err := namesAt(ctx, observer)
	if err != nil {
		return nil
	}
	if err := missing("service", services, n.services); err != nil {
		return err
	}
	if len(n.pods) == 0 { // a daemon need not know pods
		return nil
	}
	return missing("pod", pods, n.pods)
}

// missing finds the first value of a list, NAME, NAMESPACE/NAME or either with a port, that is
// none of the names.
func missing(kind, values string, names []string) error {
	for value := range strings.SplitSeq(values, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(value), ":")
		if name == "" || slices.ContainsFunc(names, func(n string) bool { return n == name || strings.HasSuffix(n, "/"+name) }) {
			continue
		}
		if len(names) == 0 {
			return fmt.Errorf("--%s %s: there is no %[1]s", kind, name)
		}
		return fmt.Errorf("--%s %s: there is no such %s%s; there are: %s", kind, name, kind, nearest.Hint(name, names), nearest.Few(names))
	}
	return nil
}
